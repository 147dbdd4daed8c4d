#include "stages/split_backward.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace zero::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// Nodes from which a path leads to some input.
class Paths {
 public:
  Paths(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
    for (const at::Tensor& input : inputs) {
      ends_.push_back(torch::autograd::impl::gradient_edge(input));
      leads_[ends_.back().function.get()] = true;
    }
    for (const at::Tensor& output : outputs) visit(torch::autograd::impl::gradient_edge(output).function);
  }
  bool lead_from(const Node* node) const {
    const auto found = leads_.find(node);
    return found != leads_.end() && found->second;
  }
  /// With a path to an input and an edge off it.
  const std::vector<std::shared_ptr<Node>>& forks() const { return forks_; }
  /// With paths to inputs alone.
  const std::vector<std::shared_ptr<Node>>& others() const { return others_; }

 private:
  // Without recursion: graphs are as deep as a model has operators.
  void visit(const std::shared_ptr<Node>& root) {
    struct Step {
      std::shared_ptr<Node> node;
      size_t next = 0;
    };
    std::vector<Step> path;
    const auto enter = [&](const std::shared_ptr<Node>& node) {
      if (node && seen_.insert(node.get()).second && !leads_.contains(node.get())) path.push_back({node});
    };
    enter(root);
    while (!path.empty()) {
      Step& top = path.back();
      if (top.next < top.node->next_edges().size()) {
        enter(top.node->next_edge(top.next++).function);
        continue;
      }
      leave(top.node);
      path.pop_back();
    }
  }

  void leave(const std::shared_ptr<Node>& node) {
    bool on_path = false, off_path = false;
    for (const Edge& edge : node->next_edges())
      if (edge.is_valid()) (lead_from(edge.function.get()) ? on_path : off_path) = true;
    leads_[node.get()] = on_path;
    if (on_path) (off_path ? forks_ : others_).push_back(node);
  }

  // A leaf's node lives only while somebody holds it: no graph does where an output is an input.
  std::vector<Edge> ends_;
  std::unordered_map<const Node*, bool> leads_;
  std::unordered_set<const Node*> seen_;
  std::vector<std::shared_ptr<Node>> forks_, others_;
};

/// What passed a fork in the first half.
struct Passed {
  bool recorded = false;
  variable_list arrived, left;
};

class Record : public torch::autograd::FunctionPostHook {
 public:
  explicit Record(std::shared_ptr<Passed> passed) : passed_(std::move(passed)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (!std::exchange(passed_->recorded, true)) {
      passed_->arrived = inputs;
      passed_->left = outputs;
    }
    return outputs;
  }

 private:
  std::shared_ptr<Passed> passed_;
};

}  // namespace

SplitBackward::SplitBackward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                             const std::vector<at::Tensor>& inputs) {
  const Paths paths(outputs, inputs);
  std::vector<std::shared_ptr<Passed>> passed;
  for (const std::shared_ptr<Node>& fork : paths.forks()) {
    passed.push_back(std::make_shared<Passed>());
    fork->add_post_hook(std::make_unique<Record>(passed.back()));
  }
  // Outputs that no input reaches have weights behind them alone.
  std::vector<at::Tensor> through, through_gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Edge edge = torch::autograd::impl::gradient_edge(outputs[i]);
    if (paths.lead_from(edge.function.get())) {
      through.push_back(outputs[i]);
      through_gradients.push_back(gradients[i]);
    } else {
      roots_.push_back(edge);
      root_gradients_.push_back(gradients[i]);
    }
  }
  input_gradients_.resize(inputs.size());
  if (!through.empty())
    input_gradients_ = torch::autograd::grad(through, inputs, through_gradients, /*retain_graph=*/true,
                                             /*create_graph=*/false, /*allow_unused=*/true);

  for (size_t i = 0; i < passed.size(); ++i) {
    Node& fork = *paths.forks()[i];
    if (!passed[i]->recorded) continue;  // no gradient came this way
    bool has_rest = false;
    for (size_t e = 0; e < fork.next_edges().size(); ++e) {
      // Cut: what lies behind on the way to the inputs is done.
      Edge& edge = fork.next_edges()[e];
      if (!edge.is_valid()) continue;
      const bool is_done = paths.lead_from(edge.function.get());
      const at::Tensor& left = passed[i]->left[e];
      if (!is_done && left.defined()) {
        roots_.push_back(edge);
        root_gradients_.push_back(left);
      }
      if (is_done || left.defined())
        edge = Edge();
      else
        has_rest = true;
    }
    const variable_list arrived = std::exchange(passed[i]->arrived, {});
    passed[i]->left.clear();
    if (!has_rest) continue;
    for (size_t k = 0; k < arrived.size(); ++k) {
      if (!arrived[k].defined()) continue;
      roots_.emplace_back(paths.forks()[i], static_cast<uint32_t>(k));
      root_gradients_.push_back(arrived[k]);
    }
  }
  // Saved tensors keep the nodes that made them, which are done.
  for (const std::shared_ptr<Node>& node : paths.others()) node->release_variables();
}

void SplitBackward::run_weights() {
  const std::vector<Edge> roots = std::exchange(roots_, {});
  const std::vector<at::Tensor> gradients = std::exchange(root_gradients_, {});
  if (roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace zero::detail

#include "autograd/tied_gradients.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "autograd/graph_walk.h"
#include "seam/dispatch.h"

namespace zero::detail {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::autograd::generated::EmbeddingBackward0;

// Autograd and we add in place only where nobody else holds the memory. A view that was recorded holds its
// base.
at::Tensor without_base(const at::Tensor& view) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  return at::alias(view);
}

bool is_ours_alone(const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided && gradient.use_count() == 1 &&
         gradient.storage().use_count() == 1 && gradient.is_non_overlapping_and_dense();
}

/// Behind an operator that gives a gradient to a weight with several uses.
class ForgetBases : public torch::autograd::FunctionPostHook {
 public:
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    const BypassIntercept bypass;
    variable_list results = outputs;
    for (at::Tensor& gradient : results)
      if (gradient.defined() && gradient.is_view()) gradient = without_base(gradient);
    return results;
  }
};

/// What a lookup gives to its weight.
struct Rows {
  at::Tensor sparse;  // [vocabulary, width], each row that occurs once; undefined until the lookup's backward
};

/// Behind the lookup: keeps the rows back.
class TakeRows : public torch::autograd::FunctionPostHook {
 public:
  explicit TakeRows(std::shared_ptr<Rows> rows) : rows_(std::move(rows)) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    if (!outputs[0].defined()) return outputs;
    const BypassIntercept bypass;
    rows_->sparse = sum_up(outputs[0]);
    return {at::Tensor()};
  }

 private:
  // By the very kernel that makes the dense gradient: adding these rows to a matrix rounds as adding that
  // would.
  static at::Tensor sum_up(const at::Tensor& gradient) {
    const auto [rows, place, counts] = at::_unique2(gradient._indices()[0], /*sorted=*/true,
                                                    /*return_inverse=*/true);
    const at::Tensor sums = at::embedding_dense_backward(gradient._values(), place, rows.numel(),
                                                         /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
    return at::_sparse_coo_tensor_unsafe(rows.unsqueeze(0), sums, gradient.sizes(), gradient.options(),
                                         /*is_coalesced=*/true);
  }

  std::shared_ptr<Rows> rows_;
};

/// Before the weight takes its gradient. Stays with the weight as long as a graph does that uses it.
class AddRows : public torch::autograd::FunctionPreHook {
 public:
  const std::shared_ptr<Rows>& rows() const { return rows_; }

  variable_list operator()(const variable_list& gradients) override {
    const at::Tensor rows = std::exchange(rows_->sparse, {});
    if (!rows.defined()) return gradients;
    const BypassIntercept bypass;
    const at::Tensor& other = gradients[0];
    if (!other.defined()) return {rows.to_dense()};
    if (!is_ours_alone(other)) return {other + rows};
    return {other.index_add_(0, rows._indices()[0], rows._values())};
  }

 private:
  std::shared_ptr<Rows> rows_ = std::make_shared<Rows>();
};

AddRows* add_rows_of(AccumulateGrad& weight) {
  for (const auto& hook : weight.pre_hooks())
    if (auto* known = dynamic_cast<AddRows*>(hook.get())) return known;
  return nullptr;
}

std::shared_ptr<Rows> rows_for(AccumulateGrad& weight) {
  if (AddRows* known = add_rows_of(weight)) return known->rows();
  auto hook = std::make_unique<AddRows>();
  std::shared_ptr<Rows> rows = hook->rows();
  weight.add_pre_hook(std::move(hook));
  return rows;
}

// Somebody else's hooks on the weight's gradient: they must see, and may change, all of it.
bool others_watch(AccumulateGrad& weight) {
  const size_t ours = add_rows_of(weight) != nullptr ? 1 : 0;
  return !weight.tensor_pre_hooks().empty() || weight.pre_hooks().size() > ours;
}

struct Uses {
  std::vector<Node*> operators;  // in the backward, each gives the weight a gradient
  std::vector<EmbeddingBackward0*> lookups;
};

using UsesOfWeights = std::unordered_map<AccumulateGrad*, Uses>;

void note_use(Node* node, AccumulateGrad& weight, UsesOfWeights& uses) {
  if (!weight.variable.is_cpu() || tag_of(weight.variable) == nullptr) return;
  Uses& found = uses[&weight];
  found.operators.push_back(node);
  if (auto* lookup = dynamic_cast<EmbeddingBackward0*>(node)) found.lookups.push_back(lookup);
}

UsesOfWeights uses_of_weights(const std::vector<at::Tensor>& outputs) {
  UsesOfWeights uses;
  for_each_node(outputs, [&](Node& node) {
    for (const torch::autograd::Edge& edge : node.next_edges())
      if (auto* weight = dynamic_cast<AccumulateGrad*>(edge.function.get())) note_use(&node, *weight, uses);
  });
  return uses;
}

void keep_rows(EmbeddingBackward0& lookup, AccumulateGrad& weight) {
  if (lookup.scale_grad_by_freq || !lookup.post_hooks().empty() || others_watch(weight)) return;
  lookup.sparse = true;
  lookup.add_post_hook(std::make_unique<TakeRows>(rows_for(weight)));
}

}  // namespace

void prepare_tied_gradients(const std::vector<at::Tensor>& outputs) {
  for (const auto& [weight, uses] : uses_of_weights(outputs)) {
    if (AddRows* known = add_rows_of(*weight)) known->rows()->sparse.reset();  // of a backward that failed
    if (uses.operators.size() < 2) continue;
    // With more uses the order of the sums, and with it their rounding, would not be autograd's.
    if (uses.operators.size() == 2 && uses.lookups.size() == 1) keep_rows(*uses.lookups.front(), *weight);
    for (Node* node : uses.operators) node->add_post_hook(std::make_unique<ForgetBases>());
  }
}

}  // namespace zero::detail

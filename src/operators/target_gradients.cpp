#include "operators/target_gradients.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "autograd/graph_walk.h"
#include "operators/log_softmax_gradient.h"
#include "seam/storage_access.h"

namespace zero::detail {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::autograd::generated::LogSoftmaxBackward0;
using torch::autograd::generated::NllLossBackward0;
using torch::jit::Stack;

// While nll_loss's backward runs whose gradient goes to log_softmax's alone.
thread_local bool keeps_elements = false;

/// What belongs to a matrix that has no memory.
struct Elements : StorageTag {
  at::Tensor targets;  // [rows] int64
  at::Tensor values;   // [rows] fp32, 0 for targets that are ignored
};

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || !node.post_hooks().empty();
}

/// Around nll_loss's backward. Stays with its node; works in the next backward only.
class Begin : public torch::autograd::FunctionPreHook {
 public:
  variable_list operator()(const variable_list& gradients) override {
    keeps_elements = std::exchange(armed, false);
    return gradients;
  }
  bool armed = false;
};

class End : public torch::autograd::FunctionPostHook {
 public:
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    keeps_elements = false;
    return outputs;
  }
};

/// The hook of ours on a loss, or one that is put there; null where others have hooks.
Begin* begin_of(NllLossBackward0& loss) {
  if (!loss.tensor_pre_hooks().empty() || !loss.retains_grad_hooks().empty()) return nullptr;
  if (loss.pre_hooks().empty() && loss.post_hooks().empty()) {
    loss.add_pre_hook(std::make_unique<Begin>());
    loss.add_post_hook(std::make_unique<End>());
  }
  if (loss.pre_hooks().size() != 1 || loss.post_hooks().size() != 1) return nullptr;
  if (dynamic_cast<End*>(loss.post_hooks().front().get()) == nullptr) return nullptr;
  return dynamic_cast<Begin*>(loss.pre_hooks().front().get());
}

LogSoftmaxBackward0* softmax_before(const NllLossBackward0& loss) {
  return dynamic_cast<LogSoftmaxBackward0*>(loss.next_edge(0).function.get());
}

at::Tensor without_memory(const at::Tensor& like, std::shared_ptr<Elements> elements) {
  auto storage = make_unreadable_storage(
      static_cast<int64_t>(like.nbytes()), like.device(), std::move(elements),
      "the gradient of log-probabilities has no matrix here: log_softmax's backward takes its elements");
  auto matrix =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKey::CPU, like.dtype());
  matrix.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
  return matrix;
}

/// The targets and their gradients; null where LibTorch has to see (and to refuse) the arguments.
std::shared_ptr<Elements> elements_of(const at::Tensor& upstream, const at::Tensor& targets, int64_t classes,
                                      int64_t reduction, int64_t ignored, const at::Tensor& total_weight) {
  const int64_t rows = targets.numel();
  const bool is_each = reduction == at::Reduction::None;
  if (upstream.numel() != (is_each ? rows : 1)) return nullptr;
  at::Tensor given = upstream.to(at::kFloat).contiguous();
  if (reduction == at::Reduction::Mean) given = given / total_weight.to(at::kFloat);
  auto elements = std::make_shared<Elements>();
  elements->targets = targets;
  elements->values = at::zeros({rows}, at::kFloat);
  const auto* target = targets.const_data_ptr<int64_t>();
  const auto* from = given.const_data_ptr<float>();
  auto* value = elements->values.data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row) {
    if (target[row] == ignored) continue;
    if (target[row] < 0 || target[row] >= classes) return nullptr;
    value[row] = -from[is_each ? row : 0];
  }
  return elements;
}

/// The matrix after all.
void write_out(const at::Tensor& matrix, const Elements& elements) {
  const at::Tensor zeros = at::zeros(matrix.sizes(), matrix.options());
  const auto* target = elements.targets.const_data_ptr<int64_t>();
  const auto* value = elements.values.const_data_ptr<float>();
  for (int64_t row = 0; row < matrix.size(0); ++row)
    if (value[row] != 0) zeros[row][target[row]] = value[row];
  c10::StorageImpl& memory = *zeros.storage().unsafeGetStorageImpl();
  attach_and_untag(*matrix.storage().unsafeGetStorageImpl(),
                   memory.set_data_ptr(c10::DataPtr(nullptr, matrix.device())));
}

}  // namespace

void prepare_target_gradients(const std::vector<at::Tensor>& outputs) {
  keeps_elements = false;  // of a backward that failed
  const bool are_checked = torch::autograd::AnomalyMode::is_enabled();
  std::unordered_map<const Node*, int> uses;  // of what log_softmax made
  std::vector<NllLossBackward0*> losses;
  for (const at::Tensor& output : outputs)
    ++uses[torch::autograd::impl::gradient_edge(output).function.get()];
  for_each_node(outputs, [&](Node& node) {
    if (auto* loss = dynamic_cast<NllLossBackward0*>(&node)) losses.push_back(loss);
    for (const torch::autograd::Edge& edge : node.next_edges())
      if (dynamic_cast<LogSoftmaxBackward0*>(edge.function.get()) != nullptr) ++uses[edge.function.get()];
  });
  for (NllLossBackward0* loss : losses) {
    LogSoftmaxBackward0* softmax = softmax_before(*loss);
    Begin* begin = softmax == nullptr ? nullptr : begin_of(*loss);
    if (begin != nullptr) begin->armed = !are_checked && uses[softmax] == 1 && !has_hooks(*softmax);
  }
}

// nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt
// ignore_index, Tensor total_weight)
bool keep_target_gradient(Stack& stack) {
  constexpr size_t kInputs = 7;
  const auto argument = [&](size_t i) -> const c10::IValue& { return torch::jit::peek(stack, i, kInputs); };
  if (!std::exchange(keeps_elements, false)) return false;
  const at::Tensor &log_probabilities = argument(1).toTensor(), &targets = argument(2).toTensor();
  const bool has_weights = argument(3).isTensor() && argument(3).toTensor().defined();
  if (has_weights || log_probabilities.dim() != 2 || !has_log_softmax_gradient(log_probabilities))
    return false;
  if (targets.scalar_type() != at::kLong || !targets.is_contiguous() || targets.dim() != 1) return false;
  if (targets.size(0) != log_probabilities.size(0)) return false;
  auto elements = elements_of(argument(0).toTensor(), targets, log_probabilities.size(1), argument(4).toInt(),
                              argument(5).toInt(), argument(6).toTensor());
  if (elements == nullptr) return false;
  at::Tensor matrix = without_memory(log_probabilities, std::move(elements));
  torch::jit::drop(stack, kInputs);
  torch::jit::push(stack, std::move(matrix));
  return true;
}

// _log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype)
bool take_target_gradient(Stack& stack) {
  constexpr size_t kInputs = 4;
  const auto argument = [&](size_t i) -> const c10::IValue& { return torch::jit::peek(stack, i, kInputs); };
  const at::Tensor &upstream = argument(0).toTensor(), &log_probabilities = argument(1).toTensor();
  const auto* elements = dynamic_cast<const Elements*>(tag_of(upstream));
  if (elements == nullptr) return false;
  const int64_t dim = argument(2).toInt();
  const bool is_last = dim == -1 || dim == log_probabilities.dim() - 1;
  if (!is_last || !has_log_softmax_gradient(log_probabilities) ||
      log_probabilities.sizes() != upstream.sizes() ||
      log_probabilities.scalar_type() != upstream.scalar_type() ||
      argument(3).toScalarType() != log_probabilities.scalar_type()) {
    write_out(upstream, *elements);
    return false;
  }
  at::Tensor gradient = log_softmax_gradient(log_probabilities, elements->targets, elements->values);
  torch::jit::drop(stack, kInputs);
  torch::jit::push(stack, std::move(gradient));
  return true;
}

}  // namespace zero::detail

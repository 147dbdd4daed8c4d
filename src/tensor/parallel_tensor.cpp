#include "tensor/parallel_tensor.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "seam/tensor_holder.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using torch::autograd::variable_list;

// The strides of a dense tensor of those sizes whose dims lie in memory in the order of `like`'s.
std::vector<int64_t> strides_like(const at::Tensor& like, const std::vector<int64_t>& sizes) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return like.stride(static_cast<int64_t>(a)) > like.stride(static_cast<int64_t>(b));
  });
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0; stride *= sizes[order[i]]) strides[order[i]] = stride;
  return strides;
}

// Reports the whole's sizes; copies that autograd makes keep the type.
class CutTensorImpl : public c10::TensorImpl, public TensorHolder {
 public:
  CutTensorImpl(at::Tensor local, Cut cut, std::shared_ptr<TensorAxis> axis)
      : TensorImpl(c10::DispatchKeySet(kParallelKey), local.dtype(), local.device()),
        local_(std::move(local)),
        cut_(std::move(cut)),
        axis_(std::move(axis)) {
    std::vector<int64_t> sizes = local_.sizes().vec();
    sizes[cut_.dim] = cut_.global_size();
    set_storage_access_should_throw();
    set_sizes_and_strides(sizes, strides_like(local_, sizes));
  }

  const at::Tensor& local() const { return local_; }
  const Cut& cut() const { return cut_; }
  const std::shared_ptr<TensorAxis>& axis() const { return axis_; }

  const at::Tensor& held() const override { return local_; }
  std::function<at::Tensor(const at::Tensor&)> wrapper() const override {
    return [cut = cut_, axis = axis_](const at::Tensor& other) { return wrapped(other, cut, axis); };
  }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&,
                                                              bool change) const override {
    return copy(change);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&,
                                                              bool change) const override {
    return copy(change);
  }

 private:
  c10::intrusive_ptr<c10::TensorImpl> copy(bool change) const {
    const LocalTensors local_tensors;
    auto copied = c10::make_intrusive<CutTensorImpl>(local_.detach(), cut_, axis_);
    copied->set_allow_tensor_metadata_change(change);
    return copied;
  }

  at::Tensor local_;
  Cut cut_;
  std::shared_ptr<TensorAxis> axis_;
};

struct MarkMeta : c10::BackendMeta {
  explicit MarkMeta(ParameterMark value) : mark(std::move(value)) {}
  ParameterMark mark;
};

// The keys of a tensor are set where it is made; LibTorch has no other way to add one later.
struct KeyAccess : c10::TensorImpl {
  static void add(c10::TensorImpl& tensor) {
    c10::DispatchKeySet& keys = tensor.*(&KeyAccess::key_set_);
    keys = keys.add(kParallelKey);
  }
};

CutTensorImpl* cut_tensor(const at::Tensor& tensor) {
  return dynamic_cast<CutTensorImpl*>(tensor.unsafeGetTensorImpl());
}

const ParameterMark* mark_of(const at::Tensor& tensor) {
  auto* meta = dynamic_cast<MarkMeta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  return meta == nullptr ? nullptr : &meta->mark;
}

// Operators hang their nodes on what a wrapper holds; torch::autograd::Function, which is no operator, hangs
// them on the wrapper. These two lead from one graph to the other: a wrapper's history is EnterLocal, and a
// wrapper that got another one is read through LeaveLocal.
struct EnterLocal : torch::autograd::Node {
  Cut cut;
  std::shared_ptr<TensorAxis> axis;
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    const LocalTensors local_tensors;
    const Value value = value_of(gradients[0]);
    return {value.cut ? value.tensor : part_of(value.tensor, cut, axis->place())};
  }
};

struct LeaveLocal : torch::autograd::Node {
  Cut cut;
  std::shared_ptr<TensorAxis> axis;
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {wrapped(gradients[0], cut, axis)};
  }
};

template <class Bridge>
std::shared_ptr<Bridge> bridge_to(const at::Tensor& tensor, const CutTensorImpl& wrapper) {
  auto bridge = std::shared_ptr<Bridge>(new Bridge, torch::autograd::deleteNode);
  bridge->cut = wrapper.cut();
  bridge->axis = wrapper.axis();
  bridge->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
  return bridge;
}

}  // namespace

void mark_parameter(const at::Tensor& parameter, const ParameterMark& mark) {
  if (is_marked(parameter)) return;
  parameter.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<MarkMeta>(mark));
  KeyAccess::add(*parameter.unsafeGetTensorImpl());
}

bool is_marked(const at::Tensor& parameter) {
  return parameter.key_set().has(kParallelKey) && mark_of(parameter) != nullptr;
}

std::shared_ptr<TensorAxis> axis_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kParallelKey)) return nullptr;
  if (const CutTensorImpl* wrapper = cut_tensor(tensor)) return wrapper->axis();
  const ParameterMark* mark = mark_of(tensor);
  return mark != nullptr && mark->axis->is_active() ? mark->axis : nullptr;
}

std::shared_ptr<TensorAxis> axis_of_module(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters())
    if (parameter.defined() && is_marked(parameter)) return mark_of(parameter)->axis;
  return nullptr;
}

bool is_parallel(const at::Tensor& tensor) { return axis_of(tensor) != nullptr; }

at::Tensor wrapped(at::Tensor local, const Cut& cut, const std::shared_ptr<TensorAxis>& axis) {
  if (!cut) return local;
  at::Tensor wrapper(c10::make_intrusive<CutTensorImpl>(std::move(local), cut, axis));
  renew_history(wrapper);
  return wrapper;
}

void renew_history(const at::Tensor& activation) {
  const CutTensorImpl& wrapper = *cut_tensor(activation);
  if (wrapper.local().requires_grad())
    torch::autograd::set_history(activation, bridge_to<EnterLocal>(wrapper.local(), wrapper));
}

Value value_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kParallelKey)) return {tensor, {}, nullptr};
  if (const CutTensorImpl* wrapper = cut_tensor(tensor)) {
    const auto node = tensor.grad_fn();
    if (node == nullptr || dynamic_cast<EnterLocal*>(node.get()) != nullptr)
      return {wrapper->local(), wrapper->cut(), wrapper->axis()};
    const at::Tensor local = wrapper->local().detach();
    torch::autograd::set_history(local, bridge_to<LeaveLocal>(tensor, *wrapper));
    return {local, wrapper->cut(), wrapper->axis()};
  }
  const ParameterMark* mark = mark_of(tensor);
  if (mark == nullptr || !mark->axis->is_active()) return {tensor, {}, nullptr};
  if (mark->is_gathered) return {mark->axis->gather(tensor, mark->cut, /*for_parts=*/false), {}, mark->axis};
  return {tensor, mark->cut, mark->axis};
}

}  // namespace zero::detail

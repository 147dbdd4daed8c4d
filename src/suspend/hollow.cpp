#include "suspend/hollow.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/variable.h>

#include "zero/error.h"

namespace zero::detail {

HollowStorage* hollow_storage(const at::Tensor& tensor) {
  return dynamic_cast<HollowStorage*>(tag_of(tensor));
}

at::Tensor hollow(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, at::Device device) {
  const auto nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  c10::Storage storage = make_unreadable_storage(
      static_cast<int64_t>(nbytes), device, std::make_shared<HollowStorage>(),
      "a tensor of another stage of a pipeline, of which only the shape is known here");
  const c10::DispatchKey key = c10::computeDispatchKey(dtype, at::kStrided, device);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor hollow_like(const at::Tensor& tensor, at::ScalarType dtype, at::Device device) {
  require(tensor.layout() == at::kStrided && !tensor.is_quantized(), ErrorKind::Unsupported, "pipeline",
          "only dense tensors go through a suspended forward");
  return hollow(tensor.sizes(), tensor.strides(), dtype, device);
}

at::Tensor hollow_like(const at::Tensor& tensor) {
  return hollow_like(tensor, tensor.scalar_type(), tensor.device());
}

at::Tensor meta_of(const at::Tensor& tensor) {
  const at::Tensor meta =
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  // A number in an expression has no say over the type.
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

void fill_hollow(const at::Tensor& hollow, const at::Tensor& source) {
  c10::TensorImpl& impl = *hollow.unsafeGetTensorImpl();
  at::Tensor data = source.detach();
  if (data.strides() != hollow.strides()) {
    // The bits of products may depend on strides: values lie as they lie where they were made.
    if (hollow.is_non_overlapping_and_dense()) {
      data = at::empty({hollow.numel()}, source.options().requires_grad(false))
                 .as_strided(hollow.sizes(), hollow.strides(), 0);
      data.copy_(source.detach());
    } else {
      data = data.contiguous();
    }
  }
  impl.set_autograd_meta(nullptr);
  impl.set_storage_keep_dtype(data.storage());
  impl.set_sizes_and_strides(data.sizes(), data.strides(), data.storage_offset());
  if (!source.requires_grad()) return;
  const at::Tensor alias = at::alias(source);
  torch::autograd::impl::set_gradient_edge(hollow, torch::autograd::impl::gradient_edge(alias));
}

}  // namespace zero::detail

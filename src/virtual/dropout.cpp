// LibTorch drops out in one fused operator where tensors are not on a CPU, which rounds bf16 in another way;
// this does as on a CPU.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "virtual/runtime.h"

namespace zero::virtual_device {
namespace {

at::Tensor dropout(const at::Tensor& x, double probability, bool is_training) {
  TORCH_CHECK(probability >= 0 && probability <= 1, "dropout probability has to be between 0 and 1, but got ",
              probability);
  if (probability == 0 || !is_training || x.numel() == 0) return x;
  if (probability == 1) return x * at::zeros({}, x.options());
  at::Tensor kept = at::empty_like(x);
  kept.bernoulli_(1 - probability);
  kept.div_(1 - probability);
  return x * kept;
}

}  // namespace

void register_dropout() {
  using torch::Library;
  static Library autograd(Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  static Library device(Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  autograd.impl("dropout", &dropout);
  device.impl("dropout", &dropout);
}

}  // namespace zero::virtual_device

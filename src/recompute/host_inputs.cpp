#include "recompute/host_inputs.h"

#include <ATen/ops/empty_like.h>

namespace zero::detail {
namespace {

class OnHost : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    device_ = tensor.device();
    host_ = at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(true));
    host_.copy_(tensor, /*non_blocking=*/true);
  }
  at::Tensor call_unpack_hook() override {
    const at::NoGradGuard no_grad;
    const at::Tensor tensor = at::empty_like(host_, host_.options().device(device_).pinned_memory(false));
    return tensor.copy_(host_, /*non_blocking=*/true);
  }

 private:
  at::Tensor host_;
  at::Device device_ = at::kCPU;
};

}  // namespace

std::unique_ptr<torch::autograd::SavedVariableHooks> HostInputs::make() { return std::make_unique<OnHost>(); }

}  // namespace zero::detail

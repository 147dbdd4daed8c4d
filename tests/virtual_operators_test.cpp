// Operators on virtual devices give the CPU's bits.
#include <torch/nn/functional.h>
#include <torch/torch.h>

#include <functional>
#include <tuple>

#include "support/virtual_machine.h"

namespace zero::virtual_device::testing {
namespace {

using torch::Tensor;
using To = std::function<Tensor(const Tensor&)>;

class VirtualOperators : public OnVirtualDevices {
 protected:
  /// `compute` gives the same bits with tensors left on the CPU and moved to the device.
  void expect_same(const std::string& what, const std::function<Tensor(To)>& compute) {
    torch::manual_seed(7);
    const Tensor host = compute([](const Tensor& tensor) { return tensor; });
    torch::manual_seed(7);
    const Tensor found = compute([this](const Tensor& tensor) { return tensor.to(device); });
    EXPECT_EQ(found.device(), device) << what;
    EXPECT_EQ(host.scalar_type(), found.scalar_type()) << what;
    ASSERT_EQ(host.sizes(), found.sizes()) << what;
    EXPECT_TRUE(host.equal(found.cpu())) << what;
  }

  Tensor x = torch::arange(48).view({6, 8}).sin(), indices = torch::tensor({4, 0, 2});
};

TEST_F(VirtualOperators, Pointwise) {
  expect_same("wrapped scalar", [&](To to) { return to(x) + 2.5; });
  expect_same("0-dim host tensor", [&](To to) { return to(x) * torch::tensor(3.0); });
  expect_same("where", [&](To to) { return torch::where(to(x) > 0, to(x), 0.0); });
  expect_same("bf16", [&](To to) { return to(x).to(torch::kBFloat16).exp(); });
  expect_same("complex", [&](To to) { return torch::view_as_real(torch::fft_fft(to(x)).conj() * 2); });
  expect_same("negated view", [&](To to) { return at::imag(torch::fft_fft(to(x)).conj()).clone(); });
}

TEST_F(VirtualOperators, ViewsInPlaceAndOut) {
  expect_same("in place on a view", [&](To to) {
    Tensor t = to(x).clone();
    t.t().narrow(0, 1, 2).mul_(3);
    return t;
  });
  expect_same("out=", [&](To to) {
    Tensor out = torch::empty({0}, to(x).options());
    at::mul_out(out, to(x), to(x));
    return out;
  });
  expect_same("cat, split, chunk", [&](To to) {
    return torch::cat({to(x).split(4, 0)[1], to(x).chunk(2, 1)[0].narrow(0, 0, 2).repeat({1, 2})}, 1);
  });
  expect_same("resize_", [&](To to) {
    Tensor t = to(x).clone();
    t.resize_({10, 8}).narrow(0, 6, 4).zero_();
    return t;
  });
  expect_same("set_", [&](To to) {
    Tensor t = to(x).clone(), u = torch::empty({0}, t.options());
    u.set_(t.storage(), 8, {2, 8}, {8, 1});
    return u;
  });
}

TEST_F(VirtualOperators, Indexing) {
  expect_same("integers", [&](To to) { return to(x).index({to(indices)}); });
  expect_same("indices of the host", [&](To to) { return to(x).index({indices}); });
  expect_same("mask", [&](To to) { return to(x).index({to(x) > 0}); });
  expect_same("masked_select", [&](To to) { return to(x).masked_select(to(x) > 0); });
  expect_same("index_put_", [&](To to) {
    Tensor t = to(x).clone();
    t.index_put_({to(indices)}, to(torch::ones({8})));
    return t;
  });
  expect_same("scatter_add", [&](To to) {
    return to(x).scatter_add(1, to(torch::zeros({6, 1}, torch::kLong)), to(torch::ones({6, 1})));
  });
  expect_same("nonzero", [&](To to) { return to(x).gt(0).nonzero(); });
  expect_same("sort", [&](To to) { return std::get<1>(to(x).sort(1, true)); });
}

TEST_F(VirtualOperators, LinearAlgebraAndLayers) {
  expect_same("bf16 product",
              [&](To to) { return to(x).to(torch::kBFloat16).matmul(to(x).to(torch::kBFloat16).t()); });
  expect_same("svd", [&](To to) { return std::get<1>(at::linalg_svd(to(x), false)); });
  expect_same("layer_norm", [&](To to) { return torch::layer_norm(to(x), {8}, to(torch::ones({8})), {}); });
  expect_same("embedding", [&](To to) { return torch::embedding(to(x), to(indices)); });
  expect_same("conv2d", [&](To to) {
    return torch::conv2d(to(torch::ones({1, 2, 9, 9})), to(torch::ones({3, 2, 3, 3})));
  });
  expect_same("baddbmm of beta 0 does not read its self", [&](To to) {
    const Tensor a = to(x).view({1, 6, 8});
    return at::baddbmm(torch::empty({1, 6, 6}, a.options()), a, a.transpose(1, 2), 0);
  });
}

TEST_F(VirtualOperators, RandomNumbersAreThoseOfTheSeed) {
  expect_same("dropout", [&](To to) { return std::get<0>(at::native_dropout(to(x), 0.3, true)); });
  expect_same("normal_ of few", [&](To to) { return torch::empty({5}, to(x).options()).normal_(); });
  expect_same("normal_ of many", [&](To to) { return torch::empty({100}, to(x).options()).normal_(); });
  expect_same("randperm", [&](To to) { return torch::randperm(50, to(x).options().dtype(torch::kLong)); });
  torch::manual_seed(3);
  const Tensor host = torch::rand({4});
  torch::manual_seed(3);
  torch::rand({4}, on(device));
  EXPECT_TRUE(torch::rand({4}).equal(host)) << "drawing on the device moved the host's generator";
}

TEST_F(VirtualOperators, ListsOfTensors) {
  expect_same("_foreach", [&](To to) {
    std::vector<Tensor> v{to(x).clone(), to(x).clone()};
    at::_foreach_add_(v, 1.5);
    at::_foreach_mul_(v, v);
    return at::_foreach_norm(v)[1];
  });
  const int64_t before = devices.report().kernels;
  std::vector<Tensor> v{torch::ones({4}, on(device)), torch::ones({4}, on(device))};
  at::_foreach_add_(v, 1.0);
  EXPECT_EQ(devices.report().kernels - before, 3) << "two fills and one kernel for the list";
  expect_same("_fused_adamw_", [&](To to) {
    std::vector<Tensor> p{to(x).clone()}, g{to(x).clone()}, m{to(torch::zeros_like(x))},
        v2{to(torch::zeros_like(x))}, s{to(torch::ones({}))};
    at::_fused_adamw_(p, g, m, v2, {}, s, 1e-3, 0.9, 0.99, 0.1, 1e-8, false, false);
    return p[0];
  });
}

TEST_F(VirtualOperators, RefusesTensorsOfTwoPlaces) {
  EXPECT_THROW(x.to(device) + x, c10::Error);
  EXPECT_THROW(x.to(device).add_(x.to(devices.device(1))), c10::Error);
}

TEST_F(VirtualOperators, CopiesBetweenDevices) {
  const Tensor other = torch::ones({8}, on(devices.device(1)));
  EXPECT_EQ((other.to(device) + torch::ones({8}, on(device))).sum().item<float>(), 16);
}

TEST_F(VirtualOperators, DeviceTensorsPrint) {
  std::ostringstream text;
  text << torch::ones({2}, on(device));
  EXPECT_NE(text.str().find("virtual"), std::string::npos) << text.str();
}

}  // namespace
}  // namespace zero::virtual_device::testing

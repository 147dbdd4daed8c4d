// Operators without values give out what those with values do: sizes, strides, types; and the small ones keep
// their values.
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/types.h>

#include <functional>
#include <sstream>

#include "support/expect_error.h"
#include "support/virtual_machine.h"
#include "virtual/shapes.h"

namespace zero::virtual_device::testing {
namespace {

using torch::Tensor;
using Results = std::vector<Tensor>;

std::string geometry_of(const Tensor& tensor) {
  if (!tensor.defined()) return "none";
  std::ostringstream text;
  text << tensor.scalar_type() << tensor.sizes() << tensor.strides();
  return text.str();
}

/// What `work` gives out on a device, and what it took there.
struct Outcome {
  std::vector<std::string> geometry;
  int64_t used_bytes = 0, kernels = 0;
  double simulated_ns = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const std::function<Results(c10::Device)>& work, bool shapes_only) {
  VirtualDeviceOptions options = plain_options();
  options.shapes_only = shapes_only;
  VirtualDevices devices(options);
  const Results results = work(devices.device());
  Outcome outcome;
  for (const Tensor& result : results) outcome.geometry.push_back(geometry_of(result));
  const DeviceReport report = devices.report();
  outcome.used_bytes = report.used_bytes;
  outcome.kernels = report.kernels;
  outcome.simulated_ns = devices.simulated_ns();
  return outcome;
}

void expect_same(const char* what, const std::function<Results(c10::Device)>& work) {
  SCOPED_TRACE(what);
  const Outcome values = outcome_of(work, false), shapes = outcome_of(work, true);
  EXPECT_EQ(shapes.geometry, values.geometry);
  EXPECT_EQ(shapes.used_bytes, values.used_bytes);
  EXPECT_EQ(shapes.kernels, values.kernels);
  EXPECT_EQ(shapes.simulated_ns, values.simulated_ns) << "to the last digit";
}

Tensor zeros_on(c10::Device device, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::zeros(sizes, at::TensorOptions(type).device(device));
}

/// The result and the gradients of the inputs.
Results with_gradients(Results inputs, const std::function<Tensor(const Results&)>& forward) {
  for (Tensor& input : inputs) input.requires_grad_(input.is_floating_point());
  Results results{forward(inputs)};
  results[0].sum().backward();
  for (const Tensor& input : inputs) results.push_back(input.grad());
  return results;
}

TEST(Shapes, OperatorsWithoutMetaKernels) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    expect_same("layer norm", [=](c10::Device on) {
      return with_gradients(
          {zeros_on(on, {64, 32, 48}, type), zeros_on(on, {48}, type), zeros_on(on, {48}, type)},
          [](const Results& of) { return at::layer_norm(of[0], {48}, of[1], of[2]); });
    });
    for (const bool has_heads_inside : {true, false})
      expect_same("attention", [=](c10::Device on) {
        const auto part = [=] {
          return has_heads_inside ? zeros_on(on, {4, 64, 4, 32}, type).transpose(1, 2)
                                  : zeros_on(on, {4, 4, 64, 32}, type);
        };
        return with_gradients({part(), part(), part()}, [](const Results& of) {
          return at::scaled_dot_product_attention(of[0], of[1], of[2], {}, 0.0, /*is_causal=*/true);
        });
      });
    expect_same("embedding", [=](c10::Device on) {
      return with_gradients({zeros_on(on, {300, 96}, type)}, [=](const Results& of) {
        return at::embedding(of[0], zeros_on(on, {16, 32}, at::kLong));
      });
    });
    expect_same("where, isnan, masked fill", [=](c10::Device on) -> Results {
      const Tensor x = zeros_on(on, {256, 128}, type), y = zeros_on(on, {256, 1}, at::kFloat);
      const Tensor mask = x.isnan();
      return {mask, at::where(mask, x, y), x.t().contiguous().masked_fill_(mask.t(), 1),
              at::where(mask.t(), x.t(), x.t())};
    });
    expect_same("dropout", [=](c10::Device on) {
      return with_gradients({zeros_on(on, {256, 128}, type)},
                            [](const Results& of) { return at::dropout(of[0], 0.5, /*train=*/true); });
    });
  }
}

TEST(Shapes, ALossAndItsGradients) {
  expect_same("net", [](c10::Device on) {
    const Tensor ids = zeros_on(on, {512}, at::kLong);
    return with_gradients({zeros_on(on, {512, 128}), zeros_on(on, {384, 128}), zeros_on(on, {384}),
                           zeros_on(on, {384, 128}).t()},
                          [=](const Results& of) {
                            const Tensor x = at::gelu(at::linear(of[0], of[1], of[2]), "tanh");
                            const Tensor y =
                                at::mm(at::silu(x), of[3].t()) / 3 + of[0].square().mean(-1, true);
                            return at::nll_loss(at::log_softmax(y, 1, at::kFloat), ids);
                          });
  });
}

class ShapesOnly : public ::testing::Test {
 protected:
  static VirtualDeviceOptions options() {
    VirtualDeviceOptions options = plain_options();
    options.shapes_only = true;
    return options;
  }
  VirtualDevices devices{options()};
  c10::Device device = devices.device();
};

TEST_F(ShapesOnly, SmallTensorsKeepTheirValues) {
  const Tensor counts = at::arange(1, 5, at::kDouble).to(device);
  Tensor sum = at::zeros({}, counts.options());
  for (int i = 0; i < 4; ++i) sum.add_(counts[i]);
  EXPECT_EQ(sum.item<double>(), 10);
  EXPECT_TRUE(counts.cpu().equal(at::arange(1, 5, at::kDouble)));
  EXPECT_EQ(devices.report().host_reads, 2);
}

TEST_F(ShapesOnly, WhatComesOfLargeOnesIsOnes) {
  const Tensor large = at::zeros({1 << 16}, at::TensorOptions(device));
  EXPECT_EQ(large.sum().item<float>(), 1);
  EXPECT_TRUE(large.cpu().equal(at::ones({1 << 16})));
  EXPECT_EQ(large[5].item<float>(), 1);
  Tensor small = at::full({4}, 7.0F, at::TensorOptions(device));
  small.copy_(large.narrow(0, 0, 4));
  EXPECT_TRUE(small.cpu().equal(at::ones({4})));
}

TEST_F(ShapesOnly, AgreementsOfManyRanksKeepTheirs) {
  const Tensor numbers = at::arange(1 << 17, at::kDouble);
  EXPECT_TRUE(numbers.to(device).cpu().equal(numbers));
  EXPECT_FALSE(has_values(at::zeros({1 << 17}).to(device))) << "parameters' type";
}

TEST_F(ShapesOnly, WhatIsExpandedBeyondItsMemoryIsNotComputed) {
  const Tensor view = at::full({1}, 6.0F, at::TensorOptions(device)).expand({1 << 22});
  EXPECT_FALSE(has_values(view));
  EXPECT_FALSE(has_values(view / 2));
  EXPECT_EQ((view.narrow(0, 0, 4) / 2)[3].item<float>(), 3);
}

TEST_F(ShapesOnly, ShapesThatFollowFromValuesAreRefusedByName) {
  const Tensor large = at::zeros({1 << 16}, at::TensorOptions(device));
  EXPECT_ERROR(large.nonzero(), Unsupported, "aten::nonzero: has no rule for the shapes of its results");
  EXPECT_ERROR(large.masked_select(large > 0), Unsupported, "aten::masked_select");
}

}  // namespace
}  // namespace zero::virtual_device::testing

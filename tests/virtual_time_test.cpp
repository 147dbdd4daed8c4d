// Simulated time: what work costs, what overlaps, what the trace shows.
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <functional>
#include <nlohmann/json.hpp>

#include "support/virtual_machine.h"
#include "zero/trace.h"

namespace zero::virtual_device::testing {
namespace {

using torch::Tensor;

class VirtualTime : public OnVirtualDevices {
 protected:
  double ns_of(const std::function<void()>& work) {
    devices.synchronize();
    const double begin = devices.simulated_ns();
    work();
    devices.synchronize();
    return devices.simulated_ns() - begin;
  }
};

TEST_F(VirtualTime, KernelsCostComputeOrMemory) {
  const Tensor big = at::ones({2048, 2048}, on(device)), small = at::ones({16}, on(device));
  // 2 * 2048^3 operations at 100 TFLOP/s, behind a launch of 4 us.
  EXPECT_NEAR(ns_of([&] { at::mm(big, big); }), 4000 + 2.0 * 2048 * 2048 * 2048 / 100e3, 0.001);
  // 16 MiB in and out at 2 TB/s.
  EXPECT_NEAR(ns_of([&] { big.neg(); }), 4000 + 2.0 * 4 * 2048 * 2048 / 2e3, 0.001);
  EXPECT_DOUBLE_EQ(ns_of([&] { small.neg(); }), 4000 + 1000);
  EXPECT_DOUBLE_EQ(ns_of([&] { small.view({4, 4}).t(); }), 0) << "views launch nothing";
  const Tensor half = big.to(torch::kBFloat16);
  EXPECT_NEAR(ns_of([&] { at::mm(half, half); }), 4000 + 2.0 * 2048 * 2048 * 2048 / 200e3, 0.001);
}

TEST_F(VirtualTime, CopiesOverlapWithKernels) {
  const Tensor pinned = at::zeros({4 << 20}).pin_memory(), target = at::zeros({4 << 20}, on(device)),
               factor = at::ones({512, 512}, on(device));
  const auto copy = [&](c10::Stream stream) {
    order(main, stream);
    const c10::StreamGuard on(stream);
    target.copy_(pinned, /*non_blocking=*/true);
  };
  const auto compute = [&] {
    for (int i = 0; i < 60; ++i) at::mm(factor, factor);
  };
  const double copying = ns_of([&] { copy(side); }), computing = ns_of(compute);
  EXPECT_DOUBLE_EQ(copying, 4000 + 4.0 * (4 << 20) / 50);
  const double apart = ns_of([&] { copy(side), compute(); }), in_turn = ns_of([&] { copy(main), compute(); });
  EXPECT_LT(apart, 1.05 * std::max(copying, computing));
  EXPECT_GT(in_turn, 0.95 * copying + 0.2 * computing);
  EXPECT_GT(in_turn, apart);
}

TEST_F(VirtualTime, EventsTellTheTimeBetweenThem) {
  c10::Event first(device.type(), c10::EventFlag::BACKEND_DEFAULT),
      second(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  const Tensor small = at::ones({16}, on(device));
  first.record(main);
  small.neg();
  small.neg();
  second.record(main);
  EXPECT_FALSE(second.query()) << "the host is ahead";
  second.synchronize();
  EXPECT_TRUE(second.query());
  // A launch every 4 us, each kernel done before the next one comes.
  EXPECT_DOUBLE_EQ(first.elapsedTime(second), 8e-3);
}

TEST_F(VirtualTime, ReportCountsWork) {
  const Tensor factor = at::ones({64, 64}, on(device));
  const DeviceReport before = devices.report();
  at::mm(factor, factor).cpu();
  const DeviceReport after = devices.report();
  EXPECT_EQ(after.kernels - before.kernels, 1);
  EXPECT_EQ(after.copies - before.copies, 1);
  EXPECT_EQ(after.flops - before.flops, 2.0 * 64 * 64 * 64);
  EXPECT_EQ(after.copied_bytes - before.copied_bytes, 4 * 64 * 64);
}

// A host that is its own device does one thing after the other.
TEST(VirtualHost, ComputesItself) {
  VirtualDeviceOptions options = plain_options();
  options.description.host_computes = true;
  options.description.operators["aten::neg"].emplace(Dtype::f32, TimeCurve({{64, 7000}}));
  VirtualDevices devices(options);
  const c10::impl::VirtualGuardImpl guard(devices.device().type());
  const Tensor t = at::ones({16}, torch::TensorOptions(devices.device()));
  devices.synchronize();
  const double begin = devices.simulated_ns();
  t.neg();
  {
    const c10::StreamGuard on_side(guard.getNewStream(devices.device()));
    t.abs();
  }
  t.neg();
  devices.synchronize();
  EXPECT_DOUBLE_EQ(devices.simulated_ns() - begin, 3 * 4000 + 2 * 7000 + 1000);
}

TEST(VirtualSamples, AreOfEveryKernel) {
  VirtualDeviceOptions options = plain_options();
  options.samples = true;
  VirtualDevices devices(options);
  const Tensor t = at::ones({16, 16}, torch::TensorOptions(devices.device()));
  devices.take_samples();
  at::mm(t, t).to(torch::kBFloat16);
  const std::vector<KernelSample> samples = devices.take_samples();
  ASSERT_EQ(samples.size(), 2);
  EXPECT_EQ(samples[0].name, "aten::mm");
  EXPECT_EQ(samples[0].work(), 2.0 * 16 * 16 * 16);
  EXPECT_EQ(samples[1].name, "convert");
  EXPECT_EQ(samples[1].work(), (4 + 2) * 16 * 16);
  for (const KernelSample& sample : samples) EXPECT_GT(sample.host_ns, 0);
  EXPECT_TRUE(devices.take_samples().empty());
}

TEST(VirtualTrace, HasARowAStream) {
  VirtualDeviceOptions options = plain_options();
  options.trace = true;
  VirtualDevices devices(options);
  const c10::impl::VirtualGuardImpl guard(devices.device().type());
  const Tensor t = at::ones({16}, torch::TensorOptions(devices.device()));
  devices.synchronize();
  {
    const c10::StreamGuard on_side(guard.getNewStream(devices.device()));
    t.neg();
  }
  const std::array<std::string, 1> events{devices.trace_events()};
  const auto document = nlohmann::json::parse(trace_document(events));
  std::vector<std::string> names;
  std::set<int> rows;
  for (const auto& event : document.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    names.push_back(event.at("name"));
    rows.insert(event.at("tid").get<int>());
    EXPECT_EQ(event.at("dur"), 1.0);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"aten::fill_", "aten::neg"}));
  EXPECT_EQ(rows.size(), 2);
}

TEST(VirtualPassedTime, IsInWholePicosecondsWheneverItBegins) {
  constexpr double kStep = 1271000.375;
  EXPECT_NE((1234567.891 + kStep) - 1234567.891, kStep);  // or this shows nothing
  for (const double begin : {0.0, 0.001, 1234567.891, 987654321.123, 5432109876.543})
    EXPECT_EQ(passed_ns(begin, begin + kStep), kStep) << begin;
}

}  // namespace
}  // namespace zero::virtual_device::testing

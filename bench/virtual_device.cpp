// What an operator costs the host on a virtual device, with all checks, beside the CPU's own; aim: 5
// microseconds more. Counters: host_ns, device_ns = one operator.
#include "virtual/virtual_device.h"

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <functional>

#include "median.h"

namespace zero::bench {
namespace {

double ns_of_one(const std::function<void()>& call) {
  constexpr int kCalls = 4000;
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count() / kCalls;
}

void compare(benchmark::State& state, const std::function<void(const at::Tensor&)>& call) {
  virtual_device::VirtualDeviceOptions options;
  options.description = virtual_device::read_description(ZERO_DEVICES "/h100-sxm.json");
  options.capacity_bytes = int64_t{64} << 20;
  const virtual_device::VirtualDevices devices(options);
  const at::Tensor host = at::ones({8}), here = host.to(devices.device());
  std::vector<double> on_host, on_device;
  for (auto _ : state) {
    on_host.push_back(ns_of_one([&] { call(host); }));
    on_device.push_back(ns_of_one([&] { call(here); }));
    state.SetIterationTime(on_device.back() / 1e9);
  }
  state.counters["host_ns"] = median(on_host);
  state.counters["device_ns"] = median(on_device);
}

void add(benchmark::State& state) {
  compare(state, [](const at::Tensor& t) { t.add(1); });
}
void add_in_place(benchmark::State& state) {
  compare(state, [](const at::Tensor& t) { t.add_(1); });
}
void view(benchmark::State& state) {
  compare(state, [](const at::Tensor& t) { t.view({4, 2}); });
}
void empty(benchmark::State& state) {
  compare(state, [](const at::Tensor& t) { at::empty({8}, t.options()); });
}

BENCHMARK(add)->UseManualTime()->Iterations(9)->Unit(benchmark::kNanosecond);
BENCHMARK(add_in_place)->UseManualTime()->Iterations(9)->Unit(benchmark::kNanosecond);
BENCHMARK(view)->UseManualTime()->Iterations(9)->Unit(benchmark::kNanosecond);
BENCHMARK(empty)->UseManualTime()->Iterations(9)->Unit(benchmark::kNanosecond);

}  // namespace
}  // namespace zero::bench

BENCHMARK_MAIN();

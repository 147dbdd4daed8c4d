// What an operator costs the host on a virtual device, beside the CPU's own.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <time.h>

#include <functional>

#include "support/sanitized.h"
#include "support/virtual_machine.h"

namespace zero::virtual_device::testing {
namespace {

double thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// CPU time of one call, the least of several runs.
double ns_of_one(const std::function<void()>& call) {
  constexpr int kCalls = 4000, kRuns = 7;
  double least = 1e18;
  for (int run = 0; run < kRuns; ++run) {
    const double begin = thread_ns();
    for (int i = 0; i < kCalls; ++i) call();
    least = std::min(least, (thread_ns() - begin) / kCalls);
  }
  return least;
}

class VirtualCost : public OnVirtualDevices {};

TEST_F(VirtualCost, AnOperatorCostsMicroseconds) {
  if (zero::testing::kIsSanitized) GTEST_SKIP() << "sanitizers take their own time";
  constexpr double kMostNs = 5000;
  const at::Tensor host = at::ones({8}), here = at::ones({8}, on(device));
  const auto expect_cheap = [&](const char* what, const std::function<void(const at::Tensor&)>& call) {
    const double own = ns_of_one([&] { call(host); }), found = ns_of_one([&] { call(here); });
    RecordProperty(std::string(what) + "_ns", std::to_string(own) + " -> " + std::to_string(found));
    EXPECT_LT(found - own, kMostNs) << what;
  };
  expect_cheap("add", [](const at::Tensor& t) { t.add(1); });
  expect_cheap("add_", [](const at::Tensor& t) { t.add_(1); });
  expect_cheap("view", [](const at::Tensor& t) { t.view({4, 2}); });
  expect_cheap("empty", [](const at::Tensor& t) { at::empty({8}, t.options()); });
}

}  // namespace
}  // namespace zero::virtual_device::testing

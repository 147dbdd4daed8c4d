#pragma once
// Tests that need CUDA devices say which they lack, and are skipped by that name.

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "compute/cuda_library.h"
#include "support/ranks.h"

namespace zero::testing {

/// "" where this process can use a CUDA device; starts the driver, after which it must not fork.
inline std::string why_no_cuda() {
  const detail::CudaLibrary& library = detail::cuda_library();
  if (!library.is_loaded) return "no CUDA device: " + library.problem;
  return at::hasCUDA() ? "" : "no CUDA device: the driver finds none";
}

/// How many there are, asked in a process of its own, so that this one may fork afterwards.
inline int count_cuda_devices() {
  if (!detail::cuda_library().is_loaded) return 0;
  const auto asked = collect_processes(1, [](Rendezvous) {
    const int count = at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0;
    hand_back(std::string_view(reinterpret_cast<const char*>(&count), sizeof count));
  });
  int count = 0;
  if (asked[0].bytes.size() == sizeof count) std::memcpy(&count, asked[0].bytes.data(), sizeof count);
  return count;
}

/// A test on the first CUDA device.
class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string problem = why_no_cuda();
    if (!problem.empty()) GTEST_SKIP() << problem;
  }
  const c10::Device device{c10::DeviceType::CUDA, 0};
};

}  // namespace zero::testing

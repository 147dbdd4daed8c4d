// What watches over NCCL's kernels, and what is missing where there is no NCCL or no CUDA.
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/AllocatorConfig.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "compute/cuda_library.h"
#include "compute/cuda_memory.h"
#include "mesh/nccl/communicator.h"
#include "support/expect_error.h"
#include "support/fake_nccl_ranks.h"

namespace zero::virtual_device::testing {
namespace {

using detail::nccl::Communicator;
using torch::Tensor;

// One member, no other process: what the thread of a mesh does every moment.
class NcclWatch : public OnVirtualDevices {
 protected:
  Communicator communicator{detail::nccl::load_library(ZERO_FAKE_NCCL),
                            c10::make_intrusive<c10d::HashStore>(),
                            0,
                            1,
                            device,
                            std::chrono::seconds(5)};
  static detail::nccl::Result nothing(detail::nccl::Comm, detail::nccl::Stream) {
    return detail::nccl::kSuccess;
  }
};

TEST_F(NcclWatch, WhatEndsInTimeIsForgotten) {
  communicator.run("ncclAllGather", nothing);
  devices.synchronize();
  communicator.watch(Communicator::Clock::now() + std::chrono::hours(1));
  EXPECT_NO_THROW(communicator.check());
}

TEST_F(NcclWatch, WhatIsOverdueIsAborted) {
  const Tensor factor = at::ones({1024, 1024}, on(device));
  for (int i = 0; i < 10; ++i) at::mm(factor, factor);
  communicator.run("ncclAllGather", nothing);
  communicator.watch(Communicator::Clock::now());
  EXPECT_NO_THROW(communicator.check());
  nccl_calls();
  communicator.watch(Communicator::Clock::now() + std::chrono::hours(1));
  EXPECT_EQ(nccl_calls(), "CommAbort\n");
  try {
    communicator.run("ncclAllGather", nothing);
    ADD_FAILURE() << "no error";
  } catch (const detail::TransferError& error) {
    EXPECT_STREQ(error.what(), "ncclAllGather did not end within 5000 ms");
    EXPECT_TRUE(error.timed_out);
  }
  devices.synchronize();
}

TEST_F(NcclWatch, AnErrorOfNcclsOwnIsTold) {
  fake_nccl<FakeNcclAsyncError>("fake_nccl_async_error")(6);
  communicator.watch(Communicator::Clock::now());
  fake_nccl<FakeNcclAsyncError>("fake_nccl_async_error")(0);
  EXPECT_THROW(communicator.check(), detail::TransferError);
}

TEST(NcclLibrary, WhatIsMissingIsNamed) {
  const auto error_of = [](const std::string& file) -> std::string {
    try {
      detail::nccl::load_library(file);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Unsupported);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of("libno-such-nccl.so.2").find("libno-such-nccl.so.2"), std::string::npos);
  EXPECT_NE(error_of("libno-such-nccl.so.2").find("pip install nvidia-nccl-cu13"), std::string::npos);
  EXPECT_NE(error_of("libm.so.6").find("has no ncclGetVersion"), std::string::npos);
}

TEST(NcclLibrary, TensorsOnCpuAreRefused) {
  EXPECT_THROW(detail::make_transport("nccl", {"", at::kCPU, std::chrono::seconds(1)}), Error);
}

// On a machine without a driver nothing is loaded, and what is asked for says what is missing.
TEST(CudaLibrary, SaysWhatIsMissing) {
  const detail::CudaLibrary& library = detail::cuda_library();
  if (library.is_loaded) GTEST_SKIP() << "there is an NVIDIA driver here";
  EXPECT_ERROR(detail::require_cuda("transport nccl"), Unsupported, "transport nccl: " + library.problem);
  EXPECT_ERROR(
      detail::make_transport("nccl", {"", c10::Device(c10::DeviceType::CUDA, 0), std::chrono::seconds(1)}),
      Unsupported, library.remedy);
}

// What the environment says holds whole.
TEST(CudaMemory, TheEnvironmentsSettingsComeFirst) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) unsetenv(name);
  EXPECT_EQ(detail::allocator_settings(true), "expandable_segments:True");
  EXPECT_EQ(detail::allocator_settings(false), std::nullopt);
  setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128", 1);
  EXPECT_EQ(detail::allocator_settings(true), std::nullopt);
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
}

TEST(CudaMemory, SettingsReachLibTorchsAllocator) {
  detail::use_allocator_settings("expandable_segments:True");
  EXPECT_TRUE(c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments());
  detail::use_allocator_settings("expandable_segments:False");
  EXPECT_FALSE(c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments());
}

TEST(CudaMemory, ALimitNeedsThePlugin) {
  setenv("ZERO_PLUGIN_DIR", "/nowhere", 1);
  EXPECT_ERROR(detail::limit_cuda_memory(c10::Device(c10::DeviceType::CUDA, 0), 1 << 20, "train.json:3"),
               Unsupported, "build libzero_cuda.so (./dev cuda)");
  unsetenv("ZERO_PLUGIN_DIR");
}

}  // namespace
}  // namespace zero::virtual_device::testing

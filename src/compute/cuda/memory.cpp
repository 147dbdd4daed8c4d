// The limit of LibTorch's CUDA allocator.

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdint>

extern "C" int64_t zero_cuda_memory_limit_1(int device, int64_t bytes) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  const c10::cuda::CUDAGuard guard(index);
  size_t free_bytes = 0, total_bytes = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const auto total = static_cast<int64_t>(total_bytes);
  if (bytes <= total)
    c10::cuda::CUDACachingAllocator::setMemoryFraction(
        static_cast<double>(bytes) / static_cast<double>(total), index);
  return total;
}

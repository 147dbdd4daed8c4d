#pragma once
// LibTorch's CUDA half, which programs on CPU neither link to nor wait for: libtorch_cuda.so, loaded from
// beside libtorch_cpu.so when CUDA is first asked for on a machine that has NVIDIA's driver.

#include <string>

namespace zero::detail {

struct CudaLibrary {
  bool is_loaded = false;
  std::string problem, remedy;  // where it is not
};

/// Loads it once; the same answer from then on. Thread safe. Does not start the driver.
const CudaLibrary& cuda_library();

/// Throws Unsupported at `place`, with what to do, unless it is loaded and there is a CUDA device.
void require_cuda(const std::string& place);

}  // namespace zero::detail

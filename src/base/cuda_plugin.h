#pragma once
// What libzero_cuda.so offers: the kernels for CUDA, from the folders src/*/cuda. It is built with
// -DZERO_CUDA=ON, loaded when the first CUDA tensor needs it, and links to LibTorch, but to nothing of ours.
// The number in a name changes whenever what stands behind it does: a plugin of another version is not taken.

#include <cstdint>

namespace zero {

inline constexpr const char* kCudaPlugin = "libzero_cuda.so";

/// Each registers kernels with LibTorch's dispatcher, for as long as the process lives. Called once.
using CudaRegister = void();
inline constexpr const char* kCudaOptimizerKernels = "zero_cuda_optimizer_kernels_1";
inline constexpr const char* kCudaMeshKernels = "zero_cuda_mesh_kernels_1";

/// Limits what LibTorch takes of a device to `bytes`; returns the bytes that the device has, and changes
/// nothing where those are fewer.
using CudaMemoryLimit = int64_t(int device, int64_t bytes);
inline constexpr const char* kCudaMemoryLimit = "zero_cuda_memory_limit_1";

}  // namespace zero

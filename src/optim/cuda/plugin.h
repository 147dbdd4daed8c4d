#pragma once
// What libzero_cuda.so, built with -DZERO_CUDA=ON, offers: the fused operators' kernels on CUDA.

namespace zero {

inline constexpr const char* kCudaPlugin = "libzero_cuda.so";
inline constexpr const char* kCudaRegister = "zero_cuda_operators_1";
/// Registers them with LibTorch's dispatcher, for as long as the process lives. Called once.
using CudaRegister = void();

}  // namespace zero

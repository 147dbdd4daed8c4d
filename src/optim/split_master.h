#pragma once
// fp32 master values whose upper half is the bf16 parameter itself: what is kept beside it is 16 bits a value
// (kernels::Remainder says which). Tensors; the kernels do the same in their pass.

#include <ATen/core/Tensor.h>

namespace zero {

inline constexpr at::ScalarType kRemainderType = at::kShort;

inline bool is_remainder(const at::Tensor& master) { return master.scalar_type() == kRemainderType; }

/// `out` [n] fp32 from `parameter` [n] bf16 and `remainder` [n] int16, each on the CPU or on one device; all
/// contiguous.
void join_master(const at::Tensor& parameter, const at::Tensor& remainder, const at::Tensor& out);

/// The other way. `values` [n] fp32, contiguous; the same holds.
void split_master(const at::Tensor& values, const at::Tensor& parameter, const at::Tensor& remainder);

}  // namespace zero

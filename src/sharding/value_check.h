#pragma once
// Tells whether somebody wrote into values.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace zero::detail {

/// Of the bytes of a contiguous tensor: no write leaves it as it was but by chance. Not for files.
uint64_t check_of(const at::Tensor& values);

}  // namespace zero::detail

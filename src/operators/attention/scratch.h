#pragma once
// What a head needs beside its tensors. All of it becomes part of its callers, which are compiled for
// different processors.

#include <cstdint>

#include "base/vector_versions.h"
#include "operators/attention/kernels.h"

namespace zero::attention {

inline constexpr int64_t kBlock = 32;  // queries, and keys, at a time; a multiple of every tile

ZERO_INLINE int64_t padded(int64_t count) { return (count + kBlock - 1) / kBlock * kBlock; }

/// Sizes with their padding.
struct Sizes {
  ZERO_INLINE explicit Sizes(const Shape& shape) : keys(padded(shape.keys)), row(padded(shape.width)) {}
  /// Panels of keys that queries before `end` see any of.
  ZERO_INLINE int64_t panels_for(const Shape& shape, int64_t end) const {
    return padded(shape.causal && end < shape.keys ? end : shape.keys) / kBlock;
  }
  int64_t keys, row;
};

/// Hands out parts of the scratch, each at a multiple of 64 bytes.
class Scratch {
 public:
  ZERO_INLINE explicit Scratch(float* memory) : next_(memory) {}
  ZERO_INLINE float* operator()(int64_t numel) {
    float* const part = next_;
    next_ += part_numel(numel);
    return part;
  }
  ZERO_INLINE static int64_t part_numel(int64_t numel) { return (numel + 15) / 16 * 16; }

 private:
  float* next_;
};

}  // namespace zero::attention

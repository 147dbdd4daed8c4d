#pragma once
// Vectors of fp32, and matrices that are copied into panels or turned. Only for files that are compiled for
// vectors; each has its own copy.

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "operators/product/product.h"

namespace zero::product {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16, kRows = 6, kVectors = 4;  // 24 sums of 32 registers
#else
constexpr int64_t kLanes = 8, kRows = 6, kVectors = 2;  // 12 sums of 16 registers
#endif
constexpr int64_t kColumns = kLanes * kVectors;

using Vector [[gnu::vector_size(kLanes * sizeof(float))]] = float;

[[gnu::always_inline]] inline Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
[[gnu::always_inline]] inline void store(float* to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

/// Past the caches: a line that is read to be overwritten costs more than a later read of it.
[[gnu::always_inline]] inline void stream(float* to, Vector vector) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, vector);
#else
  _mm256_stream_ps(to, vector);
#endif
}
bool are_lines(const float* to, int64_t stride) {
  return ((reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(stride) * sizeof *to) & 63U) == 0;
}

/// Exchanges kStep x kStep blocks off the diagonal.
template <int kStep, int... kLane>
[[gnu::always_inline]] inline void exchange(Vector& a, Vector& b, std::integer_sequence<int, kLane...>) {
  constexpr int kOther = kLanes;
  const Vector upper =
      __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLane - kStep + kOther : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLane + kOther : kLane + kStep)...);
  a = upper;
}
template <int kStep>
[[gnu::always_inline]] inline void exchange(Vector (&r)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if ((i & kStep) == 0) exchange<kStep>(r[i], r[i + kStep], std::make_integer_sequence<int, kLanes>());
}
[[gnu::always_inline]] inline void transpose(Vector (&r)[kLanes]) {
  exchange<1>(r);
  exchange<2>(r);
  exchange<4>(r);
  if constexpr (kLanes == 16) exchange<8>(r);
}

/// A block [rows, columns] of memory, both at most kLanes, that is copied transposed.
struct Turned {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;
  int64_t rows, columns;
  const float* add;  // to each row of the result, `rows` of it; or null
  bool streamed;
};

inline void copy_turned(const Turned& block) {
  if (block.rows == kLanes && block.columns == kLanes) {
    Vector r[kLanes];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) r[i] = load(block.from + i * block.from_stride);
    transpose(r);
    const Vector add = block.add != nullptr ? load(block.add) : Vector{};
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i)
      block.streamed ? stream(block.to + i * block.to_stride, r[i] + add)
                     : store(block.to + i * block.to_stride, r[i] + add);
    return;
  }
  for (int64_t i = 0; i < block.rows; ++i)
    for (int64_t j = 0; j < block.columns; ++j)
      block.to[j * block.to_stride + i] =
          block.from[i * block.from_stride + j] + (block.add != nullptr ? block.add[i] : 0);
}

/// The usual widths without a call.
[[gnu::always_inline]] inline void copy_row(float* to, const float* from, int64_t numel) {
  if (numel == kRows) {
    std::memcpy(to, from, kRows * sizeof *to);
  } else if (numel == kColumns) {
    for (int64_t v = 0; v < kVectors; ++v) store(to + v * kLanes, load(from + v * kLanes));
  } else {
    std::memcpy(to, from, static_cast<size_t>(numel) * sizeof *to);
  }
}

/// Rows [row, row + rows) of a side and [k, k + depth) of each, as panels of `width` rows: [depth, width],
/// zeros beyond the last row.
void pack(const Fp32Side& side, int64_t row, int64_t rows, int64_t k, int64_t depth, int64_t width,
          float* to) {
  for (int64_t first = 0; first < rows; first += width, to += width * depth) {
    const int64_t here = std::min(width, rows - first);
    if (here < width) std::memset(to, 0, static_cast<size_t>(width * depth) * sizeof *to);
    if (!side.along_k) {
      const float* from = side.data + k * side.stride + row + first;
      for (int64_t at = 0; at < depth; ++at) copy_row(to + at * width, from + at * side.stride, here);
      continue;
    }
    const float* from = side.data + (row + first) * side.stride + k;
    for (int64_t i = 0; i < here; i += kLanes)
      for (int64_t at = 0; at < depth; at += kLanes)
        copy_turned({from + i * side.stride + at, side.stride, to + at * width + i, width,
                     std::min(kLanes, here - i), std::min(kLanes, depth - at), nullptr, false});
  }
}

}  // namespace
}  // namespace zero::product

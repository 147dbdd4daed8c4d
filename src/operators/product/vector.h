#pragma once
// Vectors of fp32, and matrices of fp32 or bf16 that are copied into panels or turned. Only for files that
// are compiled for vectors; each has its own copy.

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "operators/element.h"
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
using Bits [[gnu::vector_size(kLanes * sizeof(uint32_t))]] = uint32_t;
using Halves [[gnu::vector_size(kLanes * sizeof(uint16_t))]] = uint16_t;

/// An element by its bits: fp32, or bf16.
template <class T>
constexpr bool kIsHalf = std::is_same_v<T, uint16_t>;

template <class V, class T>
[[gnu::always_inline]] inline V load_bits(const T* from) {
  V vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
[[gnu::always_inline]] inline Vector load(const float* from) { return load_bits<Vector>(from); }
[[gnu::always_inline]] inline Vector load(const uint16_t* from) {
  return std::bit_cast<Vector>(__builtin_convertvector(load_bits<Halves>(from), Bits) << 16);
}
[[gnu::always_inline]] inline float widen(float x) { return x; }
[[gnu::always_inline]] inline float widen(uint16_t bits) { return detail::to_float(detail::Bf16{bits}); }

[[gnu::always_inline]] inline void store(float* to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}
/// Rounded to nearest, ties to even; a NaN stays one.
[[gnu::always_inline]] inline void store(uint16_t* to, Vector vector) {
  const Bits bits = std::bit_cast<Bits>(vector);
  const Bits rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const Bits nan = std::bit_cast<Bits>(vector != vector);
  const Halves halves = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0), Halves);
  std::memcpy(to, &halves, sizeof halves);
}
[[gnu::always_inline]] inline void store(float* to, float x) { *to = x; }
[[gnu::always_inline]] inline void store(uint16_t* to, float x) {
  detail::Bf16 rounded{};
  detail::store(rounded, x);
  *to = rounded.bits;
}

/// Past the caches: a line that is read to be overwritten costs more than a later read of it.
[[gnu::always_inline]] inline void stream(float* to, Vector vector) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, vector);
#else
  _mm256_stream_ps(to, vector);
#endif
}
/// Vectors of bf16 are no whole lines.
[[gnu::always_inline]] inline void stream(uint16_t* to, Vector vector) { store(to, vector); }

bool are_lines(const float* to, int64_t stride) {
  return ((reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(stride) * sizeof *to) & 63U) == 0;
}
bool are_lines(const uint16_t* /*to*/, int64_t /*stride*/) { return false; }

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
template <class From, class To>
struct Turned {
  const From* from;
  int64_t from_stride;
  To* to;
  int64_t to_stride;
  int64_t rows, columns;
  const To* add;  // to each row of the result, `rows` of it; or null
  bool streamed;
};

template <class From, class To>
void copy_turned(const Turned<From, To>& block) {
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
      store(block.to + j * block.to_stride + i,
            widen(block.from[i * block.from_stride + j]) + (block.add != nullptr ? widen(block.add[i]) : 0));
}

template <class T>
void copy_row(float* to, const T* from, int64_t numel) {
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) store(to + i, load(from + i));
  for (; i < numel; ++i) to[i] = widen(from[i]);
}

/// The usual widths without a call.
template <class T>
[[gnu::always_inline]] inline void copy_some(float* to, const T* from, int64_t numel) {
  if (numel == kRows) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) to[i] = widen(from[i]);
  } else if (numel == kColumns) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) store(to + v * kLanes, load(from + v * kLanes));
  } else {
    copy_row(to, from, numel);
  }
}

/// Rows [row, row + rows) of a side and [k, k + depth) of each, as panels of `width` rows: [depth, width],
/// zeros beyond the last row.
template <class T>
void pack(const SideOf<T>& side, int64_t row, int64_t rows, int64_t k, int64_t depth, int64_t width,
          float* to) {
  for (int64_t first = 0; first < rows; first += width, to += width * depth) {
    const int64_t here = std::min(width, rows - first);
    if (here < width) std::memset(to, 0, static_cast<size_t>(width * depth) * sizeof *to);
    if (!side.along_k) {
      const T* from = side.data + k * side.stride + row + first;
      for (int64_t at = 0; at < depth; ++at) copy_some(to + at * width, from + at * side.stride, here);
      continue;
    }
    const T* from = side.data + (row + first) * side.stride + k;
    for (int64_t i = 0; i < here; i += kLanes)
      for (int64_t at = 0; at < depth; at += kLanes)
        copy_turned<T, float>({from + i * side.stride + at, side.stride, to + at * width + i, width,
                               std::min(kLanes, here - i), std::min(kLanes, depth - at), nullptr, false});
  }
}

}  // namespace
}  // namespace zero::product

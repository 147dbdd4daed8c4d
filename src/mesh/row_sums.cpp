#include "mesh/row_sums.h"

#include <algorithm>
#include <bit>

#include "base/vector_versions.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace zero::detail {
namespace {

// Elements at a time: their sum stays in the first-level cache.
constexpr int64_t kBlock = 1024;
// From here on nobody reads the result while it is still cached.
constexpr int64_t kStreamed = 128 << 10;

ZERO_INLINE float widen(float value) { return value; }
ZERO_INLINE float widen(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

template <class In>
ZERO_INLINE void sum_block(float* __restrict sum, const In* const* rows, size_t count, int64_t at,
                           int64_t n) {
  const In* __restrict first = rows[0] + at, * __restrict second = count > 1 ? rows[1] + at : nullptr;
  if (count == 1) {
    for (int64_t i = 0; i < n; ++i) sum[i] = widen(first[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) sum[i] = widen(first[i]) + widen(second[i]);
  for (size_t row = 2; row < count; ++row) {
    const In* __restrict next = rows[row] + at;
    for (int64_t i = 0; i < n; ++i) sum[i] += widen(next[i]);
  }
}

// Past the caches, which would first read the lines that are about to be overwritten: a third of the traffic.
void stream(float* to, const float* from, int64_t n) {
#if defined(__SSE2__)
  int64_t i = 0;
  for (; i < n && reinterpret_cast<uintptr_t>(to + i) % 16 != 0; ++i) to[i] = from[i];
  for (; i + 4 <= n; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
  for (; i < n; ++i) to[i] = from[i];
#else
  std::copy(from, from + n, to);
#endif
}

void finish_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class In>
ZERO_INLINE void sum_rows(float* out, const In* const* rows, size_t count, int64_t begin, int64_t end,
                          bool accumulate) {
  alignas(64) float sum[kBlock];
  const bool streams = !accumulate && end - begin >= kStreamed;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = std::min(kBlock, end - at);
    float* __restrict to = out + at;
    if (!streams && !accumulate) {
      sum_block(to, rows, count, at, n);
      continue;
    }
    sum_block(sum, rows, count, at, n);
    if (streams)
      stream(to, sum, n);
    else
      for (int64_t i = 0; i < n; ++i) to[i] += sum[i];
  }
  if (streams) finish_streams();
}

ZERO_VECTOR_VERSIONS void sum_fp32(float* out, const float* const* rows, size_t count, int64_t begin,
                                   int64_t end, bool accumulate) {
  sum_rows(out, rows, count, begin, end, accumulate);
}
ZERO_VECTOR_VERSIONS void sum_bf16(float* out, const uint16_t* const* rows, size_t count, int64_t begin,
                                   int64_t end, bool accumulate) {
  sum_rows(out, rows, count, begin, end, accumulate);
}

}  // namespace

void add_rows(float* out, const std::vector<const float*>& rows, int64_t begin, int64_t end,
              bool accumulate) {
  sum_fp32(out, rows.data(), rows.size(), begin, end, accumulate);
}
void add_rows(float* out, const std::vector<const uint16_t*>& rows, int64_t begin, int64_t end,
              bool accumulate) {
  sum_bf16(out, rows.data(), rows.size(), begin, end, accumulate);
}

}  // namespace zero::detail

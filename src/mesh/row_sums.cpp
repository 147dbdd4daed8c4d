#include "mesh/row_sums.h"

#include <algorithm>

#include "base/vector_versions.h"
#include "mesh/sum_element.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace zero::detail {
namespace {

// Elements at a time: their sum stays in the first-level cache.
constexpr int64_t kBlock = 1024;
// From here on nobody reads the result while it is still cached.
constexpr int64_t kStreamed = 256 << 10;
constexpr int64_t kLine = 64, kPage = 4096;  // bytes

template <class In>
ZERO_INLINE void sum_block(float* __restrict sum, const In* const* rows, size_t count, int64_t at,
                           int64_t n) {
  const In* __restrict first = rows[0] + at, * __restrict second = count > 1 ? rows[1] + at : nullptr;
  if (count <= 1) {
    for (int64_t i = 0; i < n; ++i) sum[i] = widened(first[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) sum[i] = widened(first[i]) + widened(second[i]);
  for (size_t row = 2; row < count; ++row) {
    const In* __restrict next = rows[row] + at;
    for (int64_t i = 0; i < n; ++i) sum[i] += widened(next[i]);
  }
}

#if defined(__SSE2__)
// Lines of the result go past the caches, which would first read what is about to be overwritten. Returns
// where it ended.
template <class In>
ZERO_INLINE int64_t stream_sums(float* out, const In* const* rows, size_t count, int64_t begin, int64_t end,
                                int64_t pages) {
  constexpr int64_t kRun = kLine / sizeof(In), kRuns = kPage / kLine, kElements = kRuns * kRun;
  alignas(kLine) float sum[kRun];
  int64_t at = begin;
  for (; at + pages * kElements <= end; at += pages * kElements)
    for (int64_t run = 0; run < kElements; run += kRun)
      for (int64_t page = 0; page < pages; ++page) {
        const int64_t element = at + page * kElements + run;
        sum_block(sum, rows, count, element, kRun);
        for (int64_t i = 0; i < kRun; i += 4) _mm_stream_ps(out + element + i, _mm_load_ps(sum + i));
      }
  _mm_sfence();
  return at;
}
#endif

template <class In>
ZERO_INLINE void sum_rows(float* out, const In* const* rows, size_t count, int64_t begin, int64_t end,
                          bool accumulate, [[maybe_unused]] int pages) {
  alignas(kLine) float sum[kBlock];
  int64_t at = begin;
#if defined(__SSE2__)
  if (!accumulate && end - begin >= kStreamed) {
    const auto over = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out + begin) % kLine / sizeof(float));
    const int64_t head = over == 0 ? 0 : kLine / static_cast<int64_t>(sizeof(float)) - over;
    sum_block(out + begin, rows, count, begin, head);
    at = stream_sums(out, rows, count, begin + head, end, pages);
  }
#endif
  for (; at < end; at += kBlock) {
    const int64_t n = std::min(kBlock, end - at);
    float* __restrict to = out + at;
    if (!accumulate) {
      sum_block(to, rows, count, at, n);
      continue;
    }
    sum_block(sum, rows, count, at, n);
    for (int64_t i = 0; i < n; ++i) to[i] += sum[i];
  }
}

ZERO_VECTOR_VERSIONS void sum_fp32(float* out, const float* const* rows, size_t count, int64_t begin,
                                   int64_t end, bool accumulate, int pages) {
  sum_rows(out, rows, count, begin, end, accumulate, pages);
}
ZERO_VECTOR_VERSIONS void sum_bf16(float* out, const uint16_t* const* rows, size_t count, int64_t begin,
                                   int64_t end, bool accumulate, int pages) {
  sum_rows(out, rows, count, begin, end, accumulate, pages);
}

}  // namespace

void add_rows(float* out, const std::vector<const float*>& rows, int64_t begin, int64_t end, bool accumulate,
              int pages) {
  sum_fp32(out, rows.data(), rows.size(), begin, end, accumulate, pages);
}
void add_rows(float* out, const std::vector<const uint16_t*>& rows, int64_t begin, int64_t end,
              bool accumulate, int pages) {
  sum_bf16(out, rows.data(), rows.size(), begin, end, accumulate, pages);
}

}  // namespace zero::detail

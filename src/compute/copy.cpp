#include "compute/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace zero::detail {
namespace {

constexpr size_t kStreamedBytes = size_t{1} << 20;

#if defined(__SSE2__)
constexpr size_t kLine = 64, kPage = 4096;
constexpr size_t kAhead = 2048;  // lines are asked for so far ahead, across pages; beyond the end is harmless

void stream_line(char* to, const char* from) {
  for (size_t at = 0; at < kLine; at += sizeof(__m128i))
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
}

/// Returns where whole blocks of pages end.
size_t stream_side_by_side(char* to, const char* from, size_t bytes, size_t pages) {
  const size_t block = pages * kPage;
  size_t at = 0;
  for (; at + block <= bytes; at += block)
    for (size_t line = 0; line < kPage; line += kLine)
      for (size_t page = 0; page < block; page += kPage)
        stream_line(to + at + page + line, from + at + page + line);
  return at;
}

void stream(char* to, const char* from, size_t bytes, size_t pages) {
  size_t at = pages > 1 ? stream_side_by_side(to, from, bytes, pages) : 0;
  for (; at + kLine <= bytes; at += kLine) {
    __builtin_prefetch(from + at + kAhead);
    stream_line(to + at, from + at);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
}
#endif

}  // namespace

void stream_bytes(void* to, const void* from, size_t bytes, [[maybe_unused]] int pages) {
#if defined(__SSE2__)
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine);
  std::memcpy(target, source, head);
  stream(target + head, source + head, bytes - head, pages);
#else
  std::memcpy(to, from, bytes);
#endif
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes >= kStreamedBytes)
    stream_bytes(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace zero::detail

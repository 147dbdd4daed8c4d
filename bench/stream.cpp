// Compiled with -O3 for the machine that runs it.
#include "stream.h"

#include <algorithm>
#include <bit>

namespace zero::bench {
namespace {

uint16_t upper_half(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// Blocks small enough for the first cache level; the next but one is asked for, as the kernels do.
constexpr int64_t kBlock = 256;

void ask_for(const float* values, int64_t at) {
  for (int64_t i = 0; i < kBlock; i += 16) __builtin_prefetch(values + at + 2 * kBlock + i);
}

void add(float* __restrict to, const float* __restrict g, int64_t begin, int64_t end) {
  ask_for(to, begin);
  for (int64_t i = begin; i < end; ++i) to[i] += g[i];
}

void copy(const float* __restrict p, uint16_t* __restrict out, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < kBlock; i += 32) __builtin_prefetch(out + begin + 2 * kBlock + i, 1);
  for (int64_t i = begin; i < end; ++i) out[i] = upper_half(p[i]);
}

void swap(uint16_t* __restrict half, int16_t* __restrict rest, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < kBlock; i += 32) {
    __builtin_prefetch(half + begin + 2 * kBlock + i, 1);
    __builtin_prefetch(rest + begin + 2 * kBlock + i, 1);
  }
  for (int64_t i = begin; i < end; ++i) {
    const uint16_t before = half[i];
    half[i] = static_cast<uint16_t>(before + rest[i]);
    rest[i] = static_cast<int16_t>(before);
  }
}

}  // namespace

void run_stream(const Stream& s, int64_t begin, int64_t end) {
  for (int64_t from = begin; from < end; from += kBlock) {
    const int64_t to = std::min(end, from + kBlock);
    ask_for(s.gradient, from);
    if (s.first) add(s.first, s.gradient, from, to);
    if (s.second) add(s.second, s.gradient, from, to);
    if (s.remainder) {
      swap(s.parameter, s.remainder, from, to);
      continue;
    }
    add(s.master, s.gradient, from, to);
    copy(s.master, s.parameter, from, to);
  }
}

void add_rows(float* __restrict out, const std::vector<const void*>& rows, int64_t n, bool bf16) {
  const auto widen = [](uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); };
  const void *const first = rows.front(), *const second = rows.size() > 1 ? rows[1] : nullptr;
  if (rows.size() == 2 && bf16) {
    const auto *a = static_cast<const uint16_t*>(first), *b = static_cast<const uint16_t*>(second);
    for (int64_t i = 0; i < n; ++i) out[i] = widen(a[i]) + widen(b[i]);
    return;
  }
  if (rows.size() == 2) {
    const auto *a = static_cast<const float*>(first), *b = static_cast<const float*>(second);
    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
    return;
  }
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    for (int64_t i = begin; i < end; ++i) out[i] = 0;
    for (const void* row : rows)
      for (int64_t i = begin; i < end; ++i)
        out[i] += bf16 ? widen(static_cast<const uint16_t*>(row)[i]) : static_cast<const float*>(row)[i];
  }
}

}  // namespace zero::bench

#pragma once
// Random bits of stochastic rounding, 16 elements at a time: random_word() of scalar.h for AVX2 and later. In
// an unnamed namespace for the reason that scalar.h gives.

#include <immintrin.h>

#include <cstdint>

namespace zero::kernels {
namespace {

/// random_word() of eight pairs, the first of which is `pair`: bits of 16 elements.
inline __m256i random_words(uint32_t pair, uint64_t key) {
  const auto set = [](uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); };
  const auto mixed = [](__m256i x, int by) { return _mm256_xor_si256(x, _mm256_srli_epi32(x, by)); };
  __m256i x = _mm256_add_epi32(set(pair), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  x = _mm256_add_epi32(_mm256_mullo_epi32(x, set(0x9e3779b1U)), set(static_cast<uint32_t>(key)));
  x = _mm256_mullo_epi32(mixed(x, 16), set(0x85ebca6bU));
  x = _mm256_mullo_epi32(_mm256_add_epi32(mixed(x, 13), set(static_cast<uint32_t>(key >> 32))),
                         set(0xc2b2ae35U));
  return mixed(_mm256_mullo_epi32(mixed(x, 16), set(0x7feb352dU)), 15);
}

}  // namespace
}  // namespace zero::kernels

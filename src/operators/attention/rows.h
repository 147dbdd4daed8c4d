#pragma once
// Rows of scores and gradients between tile products, as vectors of 16. Only for files that are compiled for
// AMX; everything is local to them.

#include "operators/attention/blocks.h"

namespace zero::attention {
namespace {

/// 16 elements of fp32 as two of bf16 each.
struct Parts {
  __m256i high, low;
};
ZERO_INLINE __m256i rounded(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
ZERO_INLINE Parts split(__m512 x) {
  const __m256i high = rounded(x);
  return {high, rounded(_mm512_sub_ps(x, product::widen(high)))};
}

ZERO_INLINE void put(char* to, __m256i values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), values);
}
ZERO_INLINE void put(Split to, int64_t element, Parts values) {
  put(to.high + 2 * element, values.high);
  put(to.low + 2 * element, values.low);
}

/// A line of a right tile: elements of two rows side by side.
ZERO_INLINE void put_pairs(Split to, int64_t line, Parts even, Parts odd) {
  _mm512_store_si512(to.high + line * kLineBytes, product::pairs(even.high, odd.high));
  _mm512_store_si512(to.low + line * kLineBytes, product::pairs(even.low, odd.low));
}

/// exp(x) of the lanes in `mask`, zeros elsewhere; x <= 0 but for rounding. As element.h's exp_of.
ZERO_INLINE __m512 exponential(__mmask16 mask, __m512 x) {
  const __m512 inside = _mm512_max_ps(_mm512_set1_ps(-100.0F), x);  // a NaN stays one
  const __m512 n = _mm512_roundscale_ps(inside * 1.44269504F, 0);
  return _mm512_maskz_scalef_ps(mask, exp_reduced(inside, n), n);
}

/// The greatest of `seen` scores times `scale`.
float greatest_score(const float* scores, int64_t seen, float scale) {
  const __m512 least_of_all = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 most = least_of_all;
  for (int64_t j = 0; j < seen; j += 16) {
    const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(scores + j), _mm512_set1_ps(scale));
    most = _mm512_mask_max_ps(most, product::first_of_16(seen - j), x, most);
  }
  return _mm512_reduce_max_ps(most);
}

/// Splits the exponentials of `seen` scores times `scale` less `shift`, zeros up to `keys`; their sum.
float split_exponentials(const float* scores, int64_t seen, int64_t keys, float scale, float shift,
                         Split weights, int64_t begin) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < keys; j += 16) {
    const __m512 x =
        _mm512_fmsub_ps(_mm512_loadu_ps(scores + j), _mm512_set1_ps(scale), _mm512_set1_ps(shift));
    const __m512 weight = exponential(product::first_of_16(seen - j), x);
    sum = _mm512_add_ps(sum, weight);
    put(weights, begin + j, split(weight));
  }
  return _mm512_reduce_add_ps(sum);
}

/// Rows of fp32 times a factor each, rounded.
void narrow_rows(const float* from, int64_t row, int64_t rows, int64_t width, const float* factors,
                 WritableRows to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < width; d += 16) {
      const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(from + i * row + d), _mm512_set1_ps(factors[i]));
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(to.data) + i * to.stride + d,
                               product::first_of_16(width - d), rounded(x));
    }
}

/// Sum over the width of out times its gradient.
float row_product(const uint16_t* a, const uint16_t* b, int64_t width) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t d = 0; d < width; d += 16) {
    const __mmask16 mask = product::first_of_16(width - d);
    sum = _mm512_fmadd_ps(product::widen(_mm256_maskz_loadu_epi16(mask, a + d)),
                          product::widen(_mm256_maskz_loadu_epi16(mask, b + d)), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

/// Rows of a gradient from its transpose [row, keys], times `factor`.
void narrow_transposed(const float* from, int64_t from_row, int64_t keys, int64_t width, float factor,
                       WritableRows to) {
  for (int64_t key = 0; key < keys; key += kHalf)
    for (int64_t d = 0; d < width; d += kHalf) {
      __m512i lines[kHalf];
      for (int64_t i = 0; i < kHalf; ++i) lines[i] = _mm512_loadu_si512(from + (d + i) * from_row + key);
      product::transpose(lines);
      const __mmask16 mask = product::first_of_16(width - d);
      for (int64_t i = 0; i < kHalf; ++i) {
        if (key + i >= keys) break;
        const __m512 line = _mm512_mul_ps(_mm512_castsi512_ps(lines[i]), _mm512_set1_ps(factor));
        _mm256_mask_storeu_epi16(static_cast<uint16_t*>(to.data) + (key + i) * to.stride + d, mask,
                                 rounded(line));
      }
    }
}

}  // namespace
}  // namespace zero::attention

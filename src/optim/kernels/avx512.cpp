// 16 elements at a time. Compiled for AVX-512 F, BW, VL and DQ (any server since Skylake); nothing where the
// target has none. The bf16 instruction of later processors is not used: it flushes denormals, so the bits
// would differ.
#include "optim/kernels/variants.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include <immintrin.h>

#include "optim/kernels/kernel_set.h"
#include "optim/kernels/random_words.h"

namespace zero::kernels {
namespace {

struct Avx512 {
  using Reg = __m512;
  static constexpr int64_t kWidth = 16;

  static Reg set(float value) { return _mm512_set1_ps(value); }
  static Reg load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Reg value) { _mm512_storeu_ps(to, value); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_maskz_min_ps(0xffff, a, b); }
  static Reg sqrt(Reg a) { return _mm512_maskz_sqrt_ps(0xffff, a); }
  static Reg sign(Reg a) {
    const Reg zero = _mm512_setzero_ps();
    const Reg positive = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, zero, _CMP_GT_OQ), set(1));
    return _mm512_mask_mov_ps(positive, _mm512_cmp_ps_mask(a, zero, _CMP_LT_OQ), set(-1));
  }

  static __m256i load_halves(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_halves(uint16_t* to, __m256i halves) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }

  static Reg load_bf16(const uint16_t* from) {
    return _mm512_castsi512_ps(shifted(_mm512_maskz_cvtepu16_epi32(0xffff, load_halves(from))));
  }
  static Reg load_f16(const uint16_t* from) { return _mm512_maskz_cvtph_ps(0xffff, load_halves(from)); }

  static __mmask16 is_nan(Reg value) { return _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q); }
  // In the low halves of 32 bits.
  static __m512i to_bf16(Reg value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i high = _mm512_maskz_srli_epi32(0xffff, bits, 16);
    const __m512i bias =
        _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_maskz_srli_epi32(0xffff, _mm512_add_epi32(bits, bias), 16);
    return _mm512_mask_mov_epi32(rounded, is_nan(value), _mm512_set1_epi32(kBf16Nan));
  }
  static __m512i shifted(__m512i halves) { return _mm512_maskz_slli_epi32(0xffff, halves, 16); }
  static void store_bf16(uint16_t* to, Reg value) {
    store_halves(to, _mm512_maskz_cvtepi32_epi16(0xffff, to_bf16(value)));
  }
  static void store_f16(uint16_t* to, Reg value) {
    const __m256i halves =
        _mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    store_halves(to, _mm256_mask_mov_epi16(halves, is_nan(value), _mm256_set1_epi16(kF16Nan)));
  }

  static Reg load_split(const uint16_t* half, const Remainder* remainder) {
    const __m512i high = shifted(_mm512_maskz_cvtepu16_epi32(0xffff, load_halves(half)));
    const __m256i rest = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(remainder));
    return _mm512_castsi512_ps(_mm512_add_epi32(high, _mm512_maskz_cvtepi16_epi32(0xffff, rest)));
  }
  static void store_split(uint16_t* half, Remainder* remainder, Reg value) {
    const __m512i halves = to_bf16(value);
    const auto number = static_cast<__mmask16>(~is_nan(value));
    const __m512i rest = _mm512_maskz_sub_epi32(number, _mm512_castps_si512(value), shifted(halves));
    store_halves(half, _mm512_maskz_cvtepi32_epi16(0xffff, halves));
    // Narrowing saturates.
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(remainder), _mm512_maskz_cvtsepi32_epi16(0xffff, rest));
  }

  static void store_rounded(uint16_t* half, Reg value, uint64_t key, int64_t number) {
    const __m256i random = random_words(static_cast<uint32_t>(number / 2), key);
    const __m512i sum =
        _mm512_add_epi32(_mm512_castps_si512(value), _mm512_maskz_cvtepu16_epi32(0xffff, random));
    const __m512i halves = _mm512_mask_mov_epi32(_mm512_maskz_srli_epi32(0xffff, sum, 16), is_nan(value),
                                                 _mm512_set1_epi32(kBf16Nan));
    store_halves(half, _mm512_maskz_cvtepi32_epi16(0xffff, halves));
  }

  /// As add_whole_squares(). Added to 2^52 and rounded towards zero, a number loses what is not whole.
  static void add_whole_squares(const float* values, int64_t numel, double row_scale, const double* scales,
                                double* sums, double* lanes) {
    constexpr int kDown = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
    const __m512d unit = _mm512_set1_pd(0x1p52), by_row = _mm512_set1_pd(row_scale);
    __m512d low = unit, high = unit;
    const auto add = [&](int64_t i, __m512d& row) {
      const __m512d value = _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(values + i)),
                    square = _mm512_mul_pd(value, value),
                    whole = _mm512_fmadd_round_pd(square, _mm512_loadu_pd(scales + i), unit, kDown);
      _mm512_storeu_pd(sums + i, _mm512_add_pd(_mm512_loadu_pd(sums + i), _mm512_sub_pd(whole, unit)));
      row = _mm512_fmadd_round_pd(square, by_row, row, kDown);
    };
    for (int64_t i = 0; i < numel; i += 16) {
      add(i, low);
      add(i + 8, high);
    }
    _mm512_storeu_pd(lanes, _mm512_sub_pd(low, unit));
    _mm512_storeu_pd(lanes + 8, _mm512_sub_pd(high, unit));
  }

  struct Squares {
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
    void add(Reg value) {
      const __m512d first = _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, value, 0));
      const __m512d second = _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, value, 1));
      low = _mm512_add_pd(low, _mm512_mul_pd(first, first));
      high = _mm512_add_pd(high, _mm512_mul_pd(second, second));
    }
    void store(double* to) const {
      _mm512_storeu_pd(to, low);
      _mm512_storeu_pd(to + 8, high);
    }
  };
};

}  // namespace

const KernelSet* avx512_kernels() {
  static constexpr KernelSet kSet = kernel_set<Avx512>("avx512");
  return &kSet;
}

}  // namespace zero::kernels

#else

const zero::kernels::KernelSet* zero::kernels::avx512_kernels() { return nullptr; }

#endif

// 8 elements at a time. Compiled for AVX2 and F16C; nothing where the target has none.
#include "optim/kernels/variants.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

#include "optim/kernels/passes.h"

namespace zero::kernels {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int64_t kWidth = 8;

  static Reg set(float value) { return _mm256_set1_ps(value); }
  static Reg load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Reg value) { _mm256_storeu_ps(to, value); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg sqrt(Reg a) { return _mm256_sqrt_ps(a); }
  static Reg sign(Reg a) {
    const Reg zero = _mm256_setzero_ps(), one = set(1);
    return sub(_mm256_and_ps(_mm256_cmp_ps(a, zero, _CMP_GT_OQ), one),
               _mm256_and_ps(_mm256_cmp_ps(a, zero, _CMP_LT_OQ), one));
  }

  static __m128i load_halves(const uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void store_halves(uint16_t* to, __m128i halves) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }

  static Reg load_bf16(const uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(from)), 16));
  }
  static Reg load_f16(const uint16_t* from) { return _mm256_cvtph_ps(load_halves(from)); }

  static __m256i is_nan(Reg value) { return _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)); }
  // In the low halves of 32 bits.
  static __m256i to_bf16(Reg value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(kBf16Nan), is_nan(value));
  }
  // Packing works within 128-bit lanes: brings the two packed quarters together.
  static __m128i gathered(__m256i packed) {
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
  static void store_bf16(uint16_t* to, Reg value) {
    const __m256i halves = to_bf16(value);
    store_halves(to, gathered(_mm256_packus_epi32(halves, halves)));
  }
  static void store_f16(uint16_t* to, Reg value) {
    const __m256i nan = is_nan(value);
    const __m128i narrow_nan = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    const __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    store_halves(to, _mm_blendv_epi8(halves, _mm_set1_epi16(kF16Nan), narrow_nan));
  }

  static Reg load_split(const uint16_t* half, const Remainder* remainder) {
    const __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(half)), 16);
    const __m128i rest = _mm_loadu_si128(reinterpret_cast<const __m128i*>(remainder));
    return _mm256_castsi256_ps(_mm256_add_epi32(high, _mm256_cvtepi16_epi32(rest)));
  }
  static void store_split(uint16_t* half, Remainder* remainder, Reg value) {
    const __m256i halves = to_bf16(value);
    const __m256i rest = _mm256_sub_epi32(_mm256_castps_si256(value), _mm256_slli_epi32(halves, 16));
    const __m256i number = _mm256_andnot_si256(is_nan(value), rest);
    store_halves(half, gathered(_mm256_packus_epi32(halves, halves)));
    // Packing saturates.
    _mm_storeu_si128(reinterpret_cast<__m128i*>(remainder), gathered(_mm256_packs_epi32(number, number)));
  }

  struct Squares {
    __m256d lanes[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
    void add(Reg value, int64_t lane) {
      const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
      const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
      __m256d* const to = lanes + lane / 4;
      to[0] = _mm256_add_pd(to[0], _mm256_mul_pd(low, low));
      to[1] = _mm256_add_pd(to[1], _mm256_mul_pd(high, high));
    }
    void store(double* to) const {
      for (int i = 0; i < 4; ++i) _mm256_storeu_pd(to + 4 * i, lanes[i]);
    }
  };
};

}  // namespace

const KernelSet* avx2_kernels() {
  static constexpr KernelSet kSet = kernel_set<Avx2>("avx2");
  return &kSet;
}

}  // namespace zero::kernels

#else

const zero::kernels::KernelSet* zero::kernels::avx2_kernels() { return nullptr; }

#endif

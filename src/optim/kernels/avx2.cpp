// 16 elements at a time, in two registers. Compiled for AVX2 and F16C; nothing where the target has none.
#include "optim/kernels/variants.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

#include "optim/kernels/kernel_set.h"
#include "optim/kernels/random_words.h"

namespace zero::kernels {
namespace {

/// Two registers: halves of 16 elements fill one, so they are packed and stored at a time, and each line of
/// memory is asked for once.
struct Pair {
  __m256 a, b;
};
struct BitsPair {
  __m256i a, b;
};

struct Avx2 {
  using Reg = Pair;
  static constexpr int64_t kWidth = 16;

  static Reg set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Reg load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static void store(float* to, Reg x) {
    _mm256_storeu_ps(to, x.a);
    _mm256_storeu_ps(to + 8, x.b);
  }
  static Reg add(Reg x, Reg y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static Reg sub(Reg x, Reg y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static Reg mul(Reg x, Reg y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static Reg div(Reg x, Reg y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static Reg min(Reg x, Reg y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static Reg sqrt(Reg x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
  static Reg sign(Reg x) { return {sign(x.a), sign(x.b)}; }

  static Reg load_bf16(const uint16_t* from) {
    const BitsPair bits = upper(load_halves(from));
    return {_mm256_castsi256_ps(bits.a), _mm256_castsi256_ps(bits.b)};
  }
  static Reg load_f16(const uint16_t* from) {
    const __m256i halves = load_halves(from);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  static void store_bf16(uint16_t* to, Reg x) { store_halves(to, packed(to_bf16(x.a), to_bf16(x.b))); }
  static void store_f16(uint16_t* to, Reg x) {
    const __m256i nan = in_order(_mm256_packs_epi32(is_nan(x.a), is_nan(x.b)));
    const __m256i halves =
        _mm256_set_m128i(_mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                         _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    store_halves(to, _mm256_blendv_epi8(halves, _mm256_set1_epi16(kF16Nan), nan));
  }

  static Reg load_split(const uint16_t* half, const Remainder* remainder) {
    const BitsPair high = upper(load_halves(half));
    const auto* const rest = reinterpret_cast<const __m128i*>(remainder);
    return {_mm256_castsi256_ps(_mm256_add_epi32(high.a, _mm256_cvtepi16_epi32(_mm_loadu_si128(rest)))),
            _mm256_castsi256_ps(_mm256_add_epi32(high.b, _mm256_cvtepi16_epi32(_mm_loadu_si128(rest + 1))))};
  }
  static void store_split(uint16_t* half, Remainder* remainder, Reg x) {
    const __m256i a = to_bf16(x.a), b = to_bf16(x.b);
    store_halves(half, packed(a, b));
    // Packing saturates.
    const __m256i rest = in_order(_mm256_packs_epi32(remainder_of(x.a, a), remainder_of(x.b, b)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(remainder), rest);
  }

  static void store_rounded(uint16_t* half, Reg x, uint64_t key, int64_t number) {
    const __m256i random = random_words(static_cast<uint32_t>(number / 2), key);
    const auto rounded = [](__m256 values, __m128i bits) {
      const __m256i sum = _mm256_add_epi32(_mm256_castps_si256(values), _mm256_cvtepu16_epi32(bits));
      return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(kBf16Nan), is_nan(values));
    };
    store_halves(half, packed(rounded(x.a, _mm256_castsi256_si128(random)),
                              rounded(x.b, _mm256_extracti128_si256(random, 1))));
  }

  struct Squares {
    __m256d lanes[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
    void add(Reg x) {
      add(lanes[0], _mm256_castps256_ps128(x.a));
      add(lanes[1], _mm256_extractf128_ps(x.a, 1));
      add(lanes[2], _mm256_castps256_ps128(x.b));
      add(lanes[3], _mm256_extractf128_ps(x.b, 1));
    }
    void store(double* to) const {
      for (int i = 0; i < 4; ++i) _mm256_storeu_pd(to + 4 * i, lanes[i]);
    }

   private:
    static void add(__m256d& to, __m128 values) {
      const __m256d wide = _mm256_cvtps_pd(values);
      to = _mm256_add_pd(to, _mm256_mul_pd(wide, wide));
    }
  };

 private:
  static __m256 sign(__m256 x) {
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1);
    return _mm256_sub_ps(_mm256_and_ps(_mm256_cmp_ps(x, zero, _CMP_GT_OQ), one),
                         _mm256_and_ps(_mm256_cmp_ps(x, zero, _CMP_LT_OQ), one));
  }

  static __m256i load_halves(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_halves(uint16_t* to, __m256i halves) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
  /// Halves as the upper ones of 32 bits.
  static BitsPair upper(__m256i halves) {
    const auto wide = [](__m128i eight) { return _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16); };
    return {wide(_mm256_castsi256_si128(halves)), wide(_mm256_extracti128_si256(halves, 1))};
  }
  /// Packing works within 128-bit lanes.
  static __m256i in_order(__m256i packed) { return _mm256_permute4x64_epi64(packed, 0xd8); }
  static __m256i packed(__m256i a, __m256i b) { return in_order(_mm256_packus_epi32(a, b)); }

  static __m256i is_nan(__m256 x) { return _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
  // In the low halves of 32 bits.
  static __m256i to_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(kBf16Nan), is_nan(x));
  }
  static __m256i remainder_of(__m256 x, __m256i half) {
    const __m256i rest = _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(half, 16));
    return _mm256_andnot_si256(is_nan(x), rest);
  }
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

#pragma once
// One element at a time: the reference's arithmetic, and the tail of every vector variant.
//
// Everything here is in an unnamed namespace on purpose: each variant is compiled for other instructions, and
// the linker must not keep one variant's copy for all.

#include <cstdint>
#include <cstring>

#include "base/any_device.h"
#include "optim/kernels/kernels.h"

namespace zero::kernels {
namespace {

ZERO_ANY_DEVICE inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
ZERO_ANY_DEVICE inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint16_t kBf16Nan = 0x7fc0, kF16Nan = 0x7e00;

ZERO_ANY_DEVICE inline float from_bf16(uint16_t half) { return float_of(uint32_t{half} << 16); }

ZERO_ANY_DEVICE inline uint16_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > kInfinityBits) return kBf16Nan;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

ZERO_ANY_DEVICE inline float join(uint16_t half, Remainder remainder) {
  return float_of((uint32_t{half} << 16) + static_cast<uint32_t>(int32_t{remainder}));
}

ZERO_ANY_DEVICE inline Remainder remainder_of(float value, uint16_t half) {
  if (half == kBf16Nan) return 0;
  const auto rest = static_cast<int32_t>(bits_of(value) - (uint32_t{half} << 16));
  return static_cast<Remainder>(rest > 0x7fff ? 0x7fff : rest);
}

ZERO_ANY_DEVICE inline float from_f16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = (half >> 10) & 31, mantissa = half & 0x3ff;
  if (exponent == 31) return float_of(sign | kInfinityBits | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // exact
    return sign ? -magnitude : magnitude;
  }
  return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

ZERO_ANY_DEVICE inline uint16_t to_f16(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (magnitude > kInfinityBits) return kF16Nan;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
  if (magnitude >= 0x38800000) {                      // normal in half precision
    const uint32_t rebiased = magnitude - (112U << 23);
    return sign | static_cast<uint16_t>((rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13);
  }
  if (magnitude <= 0x33000000) return sign;  // at most half of the smallest subnormal
  // Subnormal: the mantissa in units of 2^-24, its lost bits rounded to nearest even.
  const uint32_t shift = 126 - (magnitude >> 23), mantissa = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t kept = mantissa >> shift, lost = mantissa & ((1U << shift) - 1), half = 1U << (shift - 1);
  return sign | static_cast<uint16_t>(kept + (lost > half || (lost == half && (kept & 1))));
}

/// The random bits of two elements, 16 each: murmur3's finaliser (Appleby) over their pair's number, with
/// half of the key on the way and a third round after it.
ZERO_ANY_DEVICE inline uint32_t random_word(uint32_t pair, uint32_t low, uint32_t high) {
  uint32_t x = pair * 0x9e3779b1U + low;
  x = (x ^ (x >> 16)) * 0x85ebca6bU;
  x = ((x ^ (x >> 13)) + high) * 0xc2b2ae35U;
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  return x ^ (x >> 15);
}

/// The value rounded up or down by 16 random bits. Infinity has nothing to cut off; a NaN is the quiet one.
ZERO_ANY_DEVICE inline uint16_t rounded_by(float value, uint16_t random) {
  const uint32_t bits = bits_of(value);
  return (bits & 0x7fffffffU) > kInfinityBits ? kBf16Nan : static_cast<uint16_t>((bits + random) >> 16);
}

struct Scalar {
  using Reg = float;
  static constexpr int64_t kWidth = 1;

  ZERO_ANY_DEVICE static Reg set(float value) { return value; }
  ZERO_ANY_DEVICE static Reg load(const float* from) { return *from; }
  ZERO_ANY_DEVICE static void store(float* to, Reg value) { *to = value; }
  ZERO_ANY_DEVICE static Reg add(Reg a, Reg b) { return a + b; }
  ZERO_ANY_DEVICE static Reg sub(Reg a, Reg b) { return a - b; }
  ZERO_ANY_DEVICE static Reg mul(Reg a, Reg b) { return a * b; }
  ZERO_ANY_DEVICE static Reg div(Reg a, Reg b) { return a / b; }
  /// The second one where either is no number.
  ZERO_ANY_DEVICE static Reg min(Reg a, Reg b) { return a < b ? a : b; }
  ZERO_ANY_DEVICE static Reg sqrt(Reg a) {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(a);
#else
    return __builtin_sqrtf(a);
#endif
  }
  ZERO_ANY_DEVICE static Reg sign(Reg a) { return static_cast<float>((a > 0) - (a < 0)); }

  ZERO_ANY_DEVICE static Reg load_bf16(const uint16_t* from) { return from_bf16(*from); }
  ZERO_ANY_DEVICE static Reg load_f16(const uint16_t* from) { return from_f16(*from); }
  ZERO_ANY_DEVICE static void store_bf16(uint16_t* to, Reg value) { *to = to_bf16(value); }
  ZERO_ANY_DEVICE static void store_f16(uint16_t* to, Reg value) { *to = to_f16(value); }
  ZERO_ANY_DEVICE static Reg load_split(const uint16_t* half, const Remainder* remainder) {
    return join(*half, *remainder);
  }
  ZERO_ANY_DEVICE static void store_split(uint16_t* half, Remainder* remainder, Reg value) {
    *half = to_bf16(value);
    *remainder = remainder_of(value, *half);
  }
  /// As RoundingKey says; element `number` has its half of its pair's bits.
  ZERO_ANY_DEVICE static void store_rounded(uint16_t* half, Reg value, uint64_t key, int64_t number) {
    const uint32_t word = random_word(static_cast<uint32_t>(number / 2), static_cast<uint32_t>(key),
                                      static_cast<uint32_t>(key >> 32));
    *half = rounded_by(value, static_cast<uint16_t>(number % 2 == 0 ? word : word >> 16));
  }
};

}  // namespace
}  // namespace zero::kernels

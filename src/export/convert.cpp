#include "export/convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "zero/error.h"

namespace zero::exporting {
namespace {

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Below the smallest normal number: adding 0.5 rounds at the last bit that is left.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000));
  }
  const uint32_t rebased = magnitude - (uint32_t{127 - 15} << 23);
  return static_cast<uint16_t>(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}

float from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | fraction << 13);
  const float value = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -value : value;
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double element(Dtype dtype, const std::byte* at) {
  switch (dtype) {
    case Dtype::f32:
      return load<float>(at);
    case Dtype::f64:
      return load<double>(at);
    case Dtype::bf16:
      return from_bf16(load<uint16_t>(at));
    default:
      return from_f16(load<uint16_t>(at));
  }
}

// False where a finite value becomes infinite.
bool put(Dtype dtype, double value, std::byte* at) {
  const auto narrow = static_cast<float>(value);
  if (dtype == Dtype::f32) {
    std::memcpy(at, &narrow, sizeof narrow);
    return std::isfinite(narrow) || !std::isfinite(value);
  }
  const uint16_t bits = dtype == Dtype::bf16 ? to_bf16(narrow) : to_f16(narrow);
  std::memcpy(at, &bits, sizeof bits);
  return std::isfinite(dtype == Dtype::bf16 ? from_bf16(bits) : from_f16(bits)) || !std::isfinite(value);
}

}  // namespace

bool is_convertible(Dtype from, Dtype to) {
  const auto half_or_single = [](Dtype d) { return d == Dtype::f32 || d == Dtype::bf16 || d == Dtype::f16; };
  return (half_or_single(from) || from == Dtype::f64) && half_or_single(to);
}

void convert(Dtype from, std::span<const std::byte> in, Dtype to, std::vector<std::byte>& out,
             std::string_view place) {
  if (from == to) {
    out.insert(out.end(), in.begin(), in.end());
    return;
  }
  require(is_convertible(from, to), ErrorKind::Internal, place, "no conversion between these types");
  const size_t step = itemsize(from), width = itemsize(to);
  const size_t count = in.size() / step, begin = out.size();
  out.resize(begin + count * width);
  for (size_t i = 0; i < count; ++i) {
    const double value = element(from, in.data() + i * step);
    if (put(to, value, out.data() + begin + i * width)) continue;
    fail(ErrorKind::Config, place,
         "the value " + std::to_string(value) + " is too large for " + std::string(to_string(to)),
         "choose another --dtype: bf16 has the range of fp32");
  }
}

}  // namespace zero::exporting

#include "optim/eight_bit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace zero::eight_bit {

DynamicMap::DynamicMap(bool is_signed) {
  constexpr int kExponents = 7;
  std::vector<double> values{0, 1};
  for (int i = 0; i < kExponents; ++i) {
    const int parts = 1 << (is_signed ? i : i + 1);
    for (int part = 0; part < parts; ++part) {
      const double middle = 0.1 + 0.9 * (part + 0.5) / parts, value = middle * std::pow(10.0, i - 6);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(values[i]);
  for (size_t i = 0; i < middles_.size(); ++i)
    middles_[i] = static_cast<float>((static_cast<double>(values_[i]) + values_[i + 1]) / 2);
  for (uint32_t upper = 0; upper < first_.size(); ++upper) {
    // The least value with these upper bits: a negative one has all lower bits set.
    const bool is_negative = (upper & 0x8000U) != 0;
    const auto least = std::bit_cast<float>((upper << 16) | (is_negative ? 0xffffU : 0U));
    const auto below = std::lower_bound(middles_.begin(), middles_.end(), least);
    first_[upper] = std::isnan(least) ? uint8_t{0} : static_cast<uint8_t>(below - middles_.begin());
  }
}

const DynamicMap& DynamicMap::of_signed() {
  static const DynamicMap map(true);
  return map;
}

const DynamicMap& DynamicMap::of_unsigned() {
  static const DynamicMap map(false);
  return map;
}

uint8_t DynamicMap::code(float value) const {
  unsigned code = first_[std::bit_cast<uint32_t>(value) >> 16];
  while (code < middles_.size() && value > middles_[code]) code++;
  return static_cast<uint8_t>(code);
}

void dequantise(const DynamicMap& map, const uint8_t* codes, const float* scales, float* values,
                int64_t count) {
  for (int64_t block = 0; block < blocks_of(count); ++block) {
    const int64_t begin = block * kBlockNumel, end = std::min(begin + kBlockNumel, count);
    const float scale = scales[block];
    if (scale == 0) {
      std::fill(values + begin, values + end, 0.0f);
      continue;
    }
    for (int64_t i = begin; i < end; ++i) values[i] = map.value(codes[i]) * scale;
  }
}

void quantise(const DynamicMap& map, const float* values, uint8_t* codes, float* scales, int64_t count) {
  for (int64_t block = 0; block < blocks_of(count); ++block) {
    const int64_t begin = block * kBlockNumel, end = std::min(begin + kBlockNumel, count);
    float scale = 0;
    bool is_number = true;
    for (int64_t i = begin; i < end; ++i) {
      const float magnitude = std::fabs(values[i]);
      is_number = is_number && magnitude == magnitude;
      scale = magnitude > scale ? magnitude : scale;
    }
    if (!is_number) scale = std::nanf("");  // what comes back is no number either
    scales[block] = scale;
    for (int64_t i = begin; i < end; ++i) codes[i] = scale == 0 ? uint8_t{0} : map.code(values[i] / scale);
  }
}

}  // namespace zero::eight_bit

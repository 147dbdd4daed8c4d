#pragma once
// Moments in 8 bits: block-wise dynamic quantisation (Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", arXiv 2110.02861, sections 2.1 and 2.2). A block of elements shares one fp32 scale, its
// largest magnitude; each element is the nearest of 256 values of a map, times the scale. Raw memory; callers
// split.

#include <array>
#include <cstddef>
#include <cstdint>

#include "zero/optimizer_rules.h"

namespace zero::eight_bit {

/// Elements that share a scale. Blocks are counted from a parameter's first element, the last one may have
/// fewer; shards begin and end between blocks, so that nothing depends on how many there are.
inline constexpr int64_t kBlockNumel = kStateBlockNumel;

inline constexpr int64_t blocks_of(int64_t numel) { return (numel + kBlockNumel - 1) / kBlockNumel; }

/// 256 ascending values in [-1, 1] or [0, 1]. For i = 0..6 the middles of 2^i equal parts of [0.1, 1]
/// (unsigned: 2^(i+1)) times 10^(i - 6), with both signs where there are some; and 0 and 1.
class DynamicMap {
 public:
  explicit DynamicMap(bool is_signed);
  /// For the first moment, and for the second, which has no signs.
  static const DynamicMap& of_signed();
  static const DynamicMap& of_unsigned();
  /// The rule's first moment (0) or its second one (1).
  static const DynamicMap& of_moment(size_t moment) { return moment == 0 ? of_signed() : of_unsigned(); }

  float value(uint8_t code) const { return values_[code]; }
  /// Between the values of codes `i` and i + 1: what is above it is nearer to the latter.
  float middle(int i) const { return middles_[static_cast<size_t>(i)]; }
  /// The nearest value; of two equally near the smaller. A NaN has code 0.
  uint8_t code(float value) const;

 private:
  std::array<float, 256> values_{};
  std::array<float, 255> middles_{};  // between neighbours
  // For the upper 16 bits of an fp32 value: a code that is not above that of any such value, nearly it.
  std::array<uint8_t, 65536> first_{};
};

/// count elements of blocks_of(count) blocks, from the first one's begin.
void dequantise(const DynamicMap& map, const uint8_t* codes, const float* scales, float* values,
                int64_t count);
/// A block of zeros has the scale 0, and comes back as zeros whatever its codes.
void quantise(const DynamicMap& map, const float* values, uint8_t* codes, float* scales, int64_t count);

}  // namespace zero::eight_bit

#pragma once
// Numbers that look random from numbers that do not: splitmix64 (Steele, Lea, Flood 2014).

#include <cstdint>

namespace zero {

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

/// A bijection of 64 bits in which every input bit reaches every output bit.
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/// All that the generator of LibTorch's CPU looks at.
constexpr uint64_t generator_seed(uint64_t x) { return x & 0xffffffffu; }

}  // namespace zero

#pragma once
// How counts are cut. Always inlined: of a function that several files compile, each for its processors, the
// linker keeps one for all.

#include <cstdint>

namespace zero::product {

[[gnu::always_inline]] inline int64_t blocks(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

/// A multiple of `unit` that cuts `count` into as few parts as `most` allows, of nearly one size.
[[gnu::always_inline]] inline int64_t even_part(int64_t count, int64_t most, int64_t unit) {
  return blocks(blocks(count, blocks(count, most)), unit) * unit;
}

}  // namespace zero::product

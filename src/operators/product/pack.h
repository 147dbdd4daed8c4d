#pragma once
// A side of a product as tiles: panels of two tiles of rows, in each the two tiles of every step of k. Zeros
// stand for what is beyond the matrix. Only for files that are compiled for AMX.

#include "operators/product/prefetch.h"
#include "operators/product/product.h"
#include "operators/product/tile.h"

namespace zero::product {

enum class Place { Left, Right };

/// Rows [row, row + rows) of a side, and [k, k + depth) of each.
struct Region {
  int64_t row = 0, rows = 0, k = 0, depth = 0;

  int64_t steps() const { return blocks(depth, kTileDepth); }
  int64_t panels() const { return blocks(rows, kPanel); }
  int64_t panel_bytes() const { return steps() * 2 * kTileBytes; }
};

/// The tile at the start of a region. Where the side lies along k, registers hold rows of 32 of k: a left
/// tile. Else they hold pairs of k: a right tile. The other of the two is its transpose.
template <Place kPlace, bool kAlongK, bool kWhole>
void pack_tile(const Bf16Side& side, const Region& at, char* to) {
  __m512i r[16];
  if constexpr (kAlongK) {
    const uint16_t* from = side.data + at.row * side.stride + at.k;
    const __mmask32 mask = first_of_32(at.depth);
    for (int i = 0; i < 16; ++i)
      r[i] = kWhole || i < at.rows ? _mm512_maskz_loadu_epi16(mask, from + i * side.stride)
                                   : _mm512_setzero_si512();
  } else {
    const uint16_t* from = side.data + at.k * side.stride + at.row;
    const __mmask16 mask = first_of_16(at.rows);
    const auto line = [&](int64_t k) {
      return kWhole || k < at.depth ? _mm256_maskz_loadu_epi16(mask, from + k * side.stride)
                                    : _mm256_setzero_si256();
    };
    for (int i = 0; i < 16; ++i) r[i] = pairs(line(2 * i), line(2 * i + 1));
  }
  if constexpr (kAlongK != (kPlace == Place::Left)) transpose(r);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kLineBytes, r[i]);
}

template <Place kPlace, bool kAlongK>
void pack_tile(const Bf16Side& side, const Region& at, char* to) {
  if (at.rows >= kTileRows && at.depth >= kTileDepth)
    pack_tile<kPlace, kAlongK, true>(side, at, to);
  else
    pack_tile<kPlace, kAlongK, false>(side, at, to);
}

inline void pack_tile(Place place, const Bf16Side& side, const Region& at, char* to) {
  if (place == Place::Left)
    side.along_k ? pack_tile<Place::Left, true>(side, at, to) : pack_tile<Place::Left, false>(side, at, to);
  else
    side.along_k ? pack_tile<Place::Right, true>(side, at, to) : pack_tile<Place::Right, false>(side, at, to);
}

/// Packs the panels of a region tile by tile, across the panels of a step before the next step.
class Packing {
 public:
  Packing() = default;
  Packing(const Bf16Side& side, Place place, const Region& region, char* to)
      : side_(side), place_(place), region_(region), to_(to), across_(2 * region.panels()) {}

  int64_t tiles() const { return across_ * region_.steps(); }
  int64_t done() const { return done_; }

  void next() {
    const int64_t step = done_ / across_, tile = done_ % across_;
    const int64_t row = tile * kTileRows, k = step * kTileDepth;
    pack_tile(place_, side_, {region_.row + row, region_.rows - row, region_.k + k, region_.depth - k},
              to_ + tile / 2 * region_.panel_bytes() + (2 * step + tile % 2) * kTileBytes);
    ++done_;
  }

  void finish() {
    while (done_ < tiles()) next();
  }

 private:
  Bf16Side side_;
  Place place_ = Place::Left;
  Region region_;
  char* to_ = nullptr;
  int64_t across_ = 0, done_ = 0;
};

/// Asks for the lines of a region within `steps` steps.
inline Prefetch prefetch(const Bf16Side& side, const Region& region, int64_t steps) {
  return {side, region.row, region.rows, region.k, region.depth, steps};
}

/// Packs a region at once. The lines of a panel are asked for in the order of memory before they are read
/// tile by tile.
inline void pack(const Bf16Side& side, Place place, const Region& region, char* to) {
  for (int64_t row = 0; row < region.rows; row += kPanel, to += region.panel_bytes()) {
    const Region panel{region.row + row, std::min(kPanel, region.rows - row), region.k, region.depth};
    prefetch(side, panel, /*steps=*/1).step();
    Packing(side, place, panel, to).finish();
  }
}

}  // namespace zero::product

#pragma once
// What AMX multiplies: a tile product adds to 16 x 16 fp32 sums the products of a left tile [16 rows, 32 of
// k] and a right tile [16 pairs of k, 16 columns, 2 of k], each 16 lines of 64 bytes (Intel, Architecture
// Instruction Set Extensions, TDPBF16PS). Only for files that are compiled for AMX.

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "operators/product/cut.h"

namespace zero::product {

constexpr int64_t kTileRows = 16, kTileDepth = 32;
constexpr int64_t kLineBytes = 64, kTileBytes = kTileRows * kLineBytes;
constexpr int64_t kPanel = 2 * kTileRows;  // rows of two tiles: what the registers hold of each side

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
// Not on the stack: GCC does not know that the instruction reads all of it.
inline const TileConfig kTileConfig;

/// Tiles of this thread while it multiplies.
struct Tiles {
  Tiles() { _tile_loadconfig(&kTileConfig); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

/// Nor does it know that loads of tiles read memory and stores write it.
inline void finish_writes() { asm volatile("" ::: "memory"); }

/// Where the two tiles of a step of a panel are: packed, or as rows of the matrix itself.
struct Panel {
  const char* data;
  int64_t row_bytes = kLineBytes, to_second = kTileBytes, to_next_step = 2 * kTileBytes;
};

/// One step of k of two panels: tiles 0 to 3, left-major, += its 2 x 2 products. Tiles 4 to 7 are used.
[[gnu::always_inline]] inline void multiply_step(const Panel& left, const char* l, const Panel& right,
                                                 const char* r) {
  _tile_loadd(4, l, left.row_bytes);
  _tile_loadd(6, r, right.row_bytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, r + right.to_second, right.row_bytes);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, l + left.to_second, left.row_bytes);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

/// Where the sums of tiles 0 to 3 are kept, fp32.
struct SumsPlace {
  int64_t row_bytes, to_right, to_below;

  void load(const char* from) const {
    _tile_loadd(0, from, row_bytes);
    _tile_loadd(1, from + to_right, row_bytes);
    _tile_loadd(2, from + to_below, row_bytes);
    _tile_loadd(3, from + to_below + to_right, row_bytes);
  }
  void store(char* to) const {
    _tile_stored(0, to, row_bytes);
    _tile_stored(1, to + to_right, row_bytes);
    _tile_stored(2, to + to_below, row_bytes);
    _tile_stored(3, to + to_below + to_right, row_bytes);
  }
};
inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

/// A mask of the first `count` of 32.
inline __mmask32 first_of_32(int64_t count) {
  return count >= 32 ? ~__mmask32{0}
                     : static_cast<__mmask32>((uint64_t{1} << std::max<int64_t>(count, 0)) - 1);
}

inline __mmask16 first_of_16(int64_t count) { return static_cast<__mmask16>(first_of_32(count)); }

/// 16 values of bf16 in fp32.
inline __m512 widen(__m256i values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

/// A line of a right tile: elements of two rows of k side by side.
inline __m512i pairs(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

/// Transposes a 16 x 16 matrix of 32 bits, in four rounds of exchanges.
[[gnu::always_inline]] inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
    }
  for (int j = 0; j < 8; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
  }
}

}  // namespace zero::product

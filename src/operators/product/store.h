#pragma once
// The sums of a block, 2 x 2 tiles, as elements of the output. Only for files that are compiled for AMX.

#include <bit>

#include "operators/product/product.h"
#include "operators/product/tile.h"

namespace zero::product {

constexpr int64_t kBlockBytes = 4 * kTileBytes;

inline __m512i round(__m512 low, __m512 high) {
  return std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}
inline __m512 sums_at(const char* line) { return _mm512_load_ps(line); }

/// Stores a block in two halves, each 16 rows of the output and 32 columns.
class Storing {
 public:
  Storing() = default;
  /// The block begins at `left` of the left side and `right` of the right one. `transposed`: the left side is
  /// the output's columns.
  Storing(const Bf16Product& product, const char* sums, int64_t left, int64_t right, bool transposed)
      : product_(&product), sums_(sums), left_(left), right_(right), transposed_(transposed), halves_(2) {}

  int64_t halves() const { return halves_; }

  void next() {
    --halves_;
    __m512i lines[16];
    const int64_t half = halves_ * kTileRows;
    const int64_t row = transposed_ ? right_ + half : left_ + half, column = transposed_ ? left_ : right_;
    if (row >= product_->rows) return;
    if (transposed_)
      transposed_lines(column, lines);
    else
      whole_lines(column, lines);
    write(lines, row, column);
  }

 private:
  void whole_lines(int64_t column, __m512i (&lines)[16]) const {
    const char *first = sums_ + 2 * halves_ * kTileBytes, *second = first + kTileBytes;
    __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
    if (product_->bias != nullptr) {
      const __m512i bias =
          _mm512_maskz_loadu_epi16(first_of_32(product_->columns - column), product_->bias + column);
      low = widen(_mm512_castsi512_si256(bias));
      high = widen(_mm512_extracti64x4_epi64(bias, 1));
    }
    for (int i = 0; i < 16; ++i)
      lines[i] = round(_mm512_add_ps(sums_at(first + i * kLineBytes), low),
                       _mm512_add_ps(sums_at(second + i * kLineBytes), high));
  }

  __m512 bias_at(int64_t column) const {
    if (product_->bias == nullptr || column >= product_->columns) return _mm512_setzero_ps();
    return _mm512_set1_ps(std::bit_cast<float>(uint32_t{product_->bias[column]} << 16));
  }

  /// Two columns of 16 rows become pairs of 32 bits, which are transposed at the cost of one tile.
  void transposed_lines(int64_t column, __m512i (&lines)[16]) const {
    const __m512i in_pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                              23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int tile = 0; tile < 2; ++tile) {
      const char* from = sums_ + (2 * tile + halves_) * kTileBytes;
      for (int i = 0; i < 8; ++i) {
        const int64_t at = column + tile * kTileRows + 2 * i;
        const __m512 even = _mm512_add_ps(sums_at(from + 2 * i * kLineBytes), bias_at(at));
        const __m512 odd = _mm512_add_ps(sums_at(from + (2 * i + 1) * kLineBytes), bias_at(at + 1));
        lines[8 * tile + i] = _mm512_permutexvar_epi16(in_pairs, round(even, odd));
      }
    }
    transpose(lines);
  }

  /// Whole lines of the output go past the caches: reading a line to overwrite it costs more than a later
  /// read.
  void write(const __m512i (&lines)[16], int64_t row, int64_t column) const {
    const int64_t stride = product_->out_stride, rows = std::min(kTileRows, product_->rows - row);
    uint16_t* to = product_->out + row * stride + column;
    const __mmask32 mask = first_of_32(product_->columns - column);
    const auto bits = reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(stride * 2);
    if (rows == kTileRows && mask == ~__mmask32{0} && bits % kLineBytes == 0) {
      for (int i = 0; i < 16; ++i) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * stride), lines[i]);
      return;
    }
    for (int i = 0; i < 16; ++i) {
      if (i >= rows) break;
      _mm512_mask_storeu_epi16(to + i * stride, mask, lines[i]);
    }
  }

  const Bf16Product* product_ = nullptr;
  const char* sums_ = nullptr;
  int64_t left_ = 0, right_ = 0;
  bool transposed_ = false;
  int halves_ = 0;
};

}  // namespace zero::product

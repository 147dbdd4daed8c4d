#pragma once
// Tile products of blocks of queries with all keys. Only for files that are compiled for AMX; everything is
// local to them.

#include "operators/attention/body.h"
#include "operators/product/pack.h"
#include "operators/product/tile.h"

namespace zero::attention {
namespace {

using product::kLineBytes, product::kTileBytes, product::Panel, product::Place, product::Region;

constexpr int64_t kHalf = product::kTileRows;    // a block is two by two tiles
constexpr int64_t kPanelBytes = 2 * kTileBytes;  // of one step of k

/// Rows from `begin` on, as a side of a product over the rows' elements, or over the rows.
product::Bf16Side side_of(Rows rows, int64_t begin, bool over_elements) {
  return {row_of<uint16_t>(rows, begin), rows.stride, over_elements};
}

/// Tiles of rows [begin, end): products over the rows' elements.
void pack_rows(Rows rows, int64_t begin, int64_t end, int64_t width, Place place, char* to) {
  product::pack(side_of(rows, begin, true), place, {0, end - begin, 0, width}, to);
}
/// Tiles of their transpose: products over rows.
void pack_columns(Rows rows, int64_t begin, int64_t end, int64_t width, Place place, char* to) {
  product::pack(side_of(rows, begin, false), place, {0, width, 0, end - begin}, to);
}

Panel rows_at(const void* data, int64_t row) {
  return {static_cast<const char*>(data), row * 2, kHalf * row * 2, kLineBytes};
}

/// A block's rows as left tiles: where they are, if they fill tiles, else packed.
Panel left_of(Rows rows, int64_t begin, int64_t end, int64_t width, char* packed) {
  if (end - begin == kBlock && width % kBlock == 0)
    return rows_at(row_of<uint16_t>(rows, begin), rows.stride);
  pack_rows(rows, begin, end, width, Place::Left, packed);
  return {packed};
}

struct Factors {
  Panel left, right;
};

/// out [kBlock, kBlock] = (itself, where kAdds) + the products of all factors over `steps` tiles of k.
template <bool kAdds, size_t kFactors>
void multiply(const Factors (&factors)[kFactors], int64_t steps, float* out, int64_t out_row) {
  const product::SumsPlace place{out_row * 4, kLineBytes, kHalf * out_row * 4};
  auto* const sums = reinterpret_cast<char*>(out);
  product::finish_writes();
  if constexpr (kAdds)
    place.load(sums);
  else
    product::zero_sums();
  for (const auto& [left, right] : factors)
    for (int64_t step = 0; step < steps; ++step)
      product::multiply_step(left, left.data + step * left.to_next_step, right,
                             right.data + step * right.to_next_step);
  place.store(sums);
  product::finish_writes();
}

/// out [kBlock, panels * kBlock] = rows of a block times packed rows, over their elements.
void multiply_rows(int64_t panels, int64_t row, const Panel& block, const char* packed, float* out,
                   int64_t out_row) {
  const int64_t steps = row / kBlock;
  for (int64_t panel = 0; panel < panels; ++panel)
    multiply<false>({{block, {packed + panel * steps * kPanelBytes}}}, steps, out + panel * kBlock, out_row);
}

/// out [kBlock, row] = a split block over keys times packed columns of all keys.
void multiply_keys(int64_t panels, const Sizes& sizes, Split block, int64_t block_row, const char* packed,
                   float* out) {
  for (int64_t d = 0; d < sizes.row; d += kBlock) {
    const Panel right{packed + d * sizes.keys * 2};
    multiply<false>({{rows_at(block.high, block_row), right}, {rows_at(block.low, block_row), right}}, panels,
                    out + d, sizes.row);
  }
}

/// out [row, panels * kBlock] += the transposed rows of a block times its split weights.
void add_block(int64_t panels, int64_t row, const char* transposed, Split weights, float* out,
               int64_t out_row) {
  for (int64_t panel = 0; panel < panels; ++panel) {
    const Panel high{weights.high + panel * kPanelBytes}, low{weights.low + panel * kPanelBytes};
    for (int64_t d = 0; d < row; d += kBlock) {
      const Panel left{transposed + d / kBlock * kPanelBytes};
      multiply<true>({{left, high}, {left, low}}, 1, out + d * out_row + panel * kBlock, out_row);
    }
  }
}

}  // namespace
}  // namespace zero::attention

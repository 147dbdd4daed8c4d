#if defined(__AMX_BF16__)

#include "operators/attention/rows.h"
#include "operators/attention/variants.h"

// Attention over bf16 by tile products, which add up in fp32. Queries, keys and values are bf16 as they come,
// so their products are exact. What is fp32, the weights and the gradient of the scores, is multiplied as the
// sum of two bf16, so that rounding shows in the sixth digit. Blocks and whole rows as in body.h.

namespace zero::attention {
namespace {

void forward_by_tiles(const Shape& shape, Rows queries, Rows keys, Rows values, WritableRows out,
                      float* log_sums, float* scratch) {
  const Sizes sizes(shape);
  Scratch take(scratch);
  const TileForwardParts parts(take, sizes);
  const product::Tiles tiles;
  pack_rows(keys, 0, shape.keys, shape.width, Place::Right, parts.keys);
  pack_columns(values, 0, shape.keys, shape.width, Place::Right, parts.values);
  for (int64_t begin = 0; begin < shape.queries; begin += kBlock) {
    const int64_t end = least(begin + kBlock, shape.queries), panels = sizes.panels_for(shape, end);
    const Panel query = left_of(queries, begin, end, shape.width, parts.query);
    multiply_rows(panels, sizes.row, query, parts.keys, parts.scores, parts.score_row);
    float inverses[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) {
      const float* const row = parts.scores + i * parts.score_row;
      const int64_t seen = keys_seen(shape, least(begin + i, shape.queries - 1));
      const float most = greatest_score(row, seen, shape.scale);
      const float sum = split_exponentials(row, seen, panels * kBlock, shape.scale, most, parts.weights,
                                           i * parts.weight_row);
      inverses[i] = 1 / sum;
      if (begin + i < end) log_sums[begin + i] = most + std::log(sum);
    }
    multiply_keys(panels, sizes, parts.weights, parts.weight_row, parts.values, parts.result);
    narrow_rows(parts.result, sizes.row, end - begin, shape.width, inverses, behind(out, begin, true));
  }
}

/// What the backward of a row's softmax knows of it.
struct Row {
  int64_t seen;
  float log_sum, common;
};

/// Of rows 2 * pair and 2 * pair + 1 of a block: their weights and the gradients of their scores, split.
void split_rows(const TileBackwardParts& parts, int64_t pair, int64_t keys, float scale,
                const Row (&rows)[2]) {
  const int64_t begin = 2 * pair * parts.score_row;
  const float* const score = parts.scores + begin;
  const float* const of_weight = parts.of_weights + begin;
  for (int64_t j = 0; j < keys; j += 16) {
    Parts weights[2], scores[2];
    for (int64_t i = 0; i < 2; ++i) {
      const __m512 x = _mm512_fmsub_ps(_mm512_loadu_ps(score + i * parts.score_row + j),
                                       _mm512_set1_ps(scale), _mm512_set1_ps(rows[i].log_sum));
      const __m512 weight = exponential(product::first_of_16(rows[i].seen - j), x);
      const __m512 gradient = _mm512_loadu_ps(of_weight + i * parts.score_row + j);
      weights[i] = split(weight);
      scores[i] = split(_mm512_mul_ps(weight, _mm512_sub_ps(gradient, _mm512_set1_ps(rows[i].common))));
      put(parts.rows_of_scores, (2 * pair + i) * parts.weight_row + j, scores[i]);
    }
    put_pairs(parts.paired_weights, j + pair, weights[0], weights[1]);
    put_pairs(parts.paired_scores, j + pair, scores[0], scores[1]);
  }
}

void backward_by_tiles(const Shape& shape, Rows queries, Rows keys, Rows values, Rows out, Rows out_gradient,
                       const float* log_sums, const Gradients& gradients, float* scratch) {
  const Sizes sizes(shape);
  Scratch take(scratch);
  const TileBackwardParts parts(take, sizes);
  const product::Tiles tiles;
  pack_rows(keys, 0, shape.keys, shape.width, Place::Right, parts.keys);
  pack_rows(values, 0, shape.keys, shape.width, Place::Right, parts.values);
  pack_columns(keys, 0, shape.keys, shape.width, Place::Right, parts.paired_keys);
  for (int64_t i = 0; i < sizes.row * parts.score_row; ++i) parts.of_keys[i] = parts.of_values[i] = 0;
  float scales[kBlock];
  for (float& scale : scales) scale = shape.scale;
  for (int64_t begin = 0; begin < shape.queries; begin += kBlock) {
    const int64_t end = least(begin + kBlock, shape.queries), panels = sizes.panels_for(shape, end);
    const Panel query = left_of(queries, begin, end, shape.width, parts.query),
                upstream = left_of(out_gradient, begin, end, shape.width, parts.upstream);
    pack_columns(queries, begin, end, shape.width, Place::Left, parts.transposed_query);
    pack_columns(out_gradient, begin, end, shape.width, Place::Left, parts.transposed_upstream);
    multiply_rows(panels, sizes.row, query, parts.keys, parts.scores, parts.score_row);
    multiply_rows(panels, sizes.row, upstream, parts.values, parts.of_weights, parts.score_row);
    for (int64_t pair = 0; pair < kBlock / 2; ++pair) {
      Row rows[2] = {};  // of the padding's queries nothing is seen
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t row = begin + 2 * pair + i;
        if (row < end)
          rows[i] = {
              keys_seen(shape, row), log_sums[row],
              row_product(row_of<uint16_t>(out, row), row_of<uint16_t>(out_gradient, row), shape.width)};
      }
      split_rows(parts, pair, panels * kBlock, shape.scale, rows);
    }
    add_block(panels, sizes.row, parts.transposed_upstream, parts.paired_weights, parts.of_values,
              parts.score_row);
    add_block(panels, sizes.row, parts.transposed_query, parts.paired_scores, parts.of_keys, parts.score_row);
    multiply_keys(panels, sizes, parts.rows_of_scores, parts.weight_row, parts.paired_keys, parts.result);
    narrow_rows(parts.result, sizes.row, end - begin, shape.width, scales,
                behind(gradients.queries, begin, true));
  }
  narrow_transposed(parts.of_keys, parts.score_row, shape.keys, shape.width, shape.scale, gradients.keys);
  narrow_transposed(parts.of_values, parts.score_row, shape.keys, shape.width, 1, gradients.values);
}

void forward_of_either(const Shape& shape, Rows queries, Rows keys, Rows values, WritableRows out,
                       float* log_sums, float* scratch) {
  (shape.half ? forward_by_tiles : forward)(shape, queries, keys, values, out, log_sums, scratch);
}

void backward_of_either(const Shape& shape, Rows queries, Rows keys, Rows values, Rows out, Rows out_gradient,
                        const float* log_sums, const Gradients& gradients, float* scratch) {
  (shape.half ? backward_by_tiles : backward)(shape, queries, keys, values, out, out_gradient, log_sums,
                                              gradients, scratch);
}

}  // namespace

const Kernels kAmx{"amx", /*longest_half=*/4096, &forward_of_either, &backward_of_either};

}  // namespace zero::attention

#endif

#pragma once
// The loops of kernels.h, for files that are compiled for different vector registers: everything is local to
// them.
//
// Whole rows of the softmax are kept instead of running sums (Dao et al., arXiv 2205.14135, needs those where
// a row does not fit): kBlock queries by all keys, which stays in the second-level cache. Queries, keys and
// values are widened to fp32 once a head, the keys (and for the backward the values) also transposed, in
// panels of kBlock keys. Padding is zero, so that loops have no remainders.

#include <cmath>
#include <limits>

#include "operators/attention/kernels.h"
#include "operators/attention/scratch.h"
#include "operators/element.h"

namespace zero::attention {
namespace {

using detail::Bf16, detail::exp_of, detail::exp_reduced, detail::greatest, detail::store, detail::to_float;

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16, kTileRows = 8;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8, kTileRows = 4;
#else
constexpr int64_t kLanes = 4, kTileRows = 4;
#endif
constexpr int64_t kTileColumns = 2 * kLanes;
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// From 768 queries on LibTorch takes blocks of 256, whose products in bf16 are worth their preparation where
// AVX-512 does them; elsewhere they never are.
#if defined(__AVX512F__)
constexpr int64_t kLongestHalf = 767;
#else
constexpr int64_t kLongestHalf = std::numeric_limits<int64_t>::max();
#endif

ZERO_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

ZERO_INLINE Vector& at(float* address) { return *reinterpret_cast<Vector*>(address); }
ZERO_INLINE const Vector& at(const float* address) { return *reinterpret_cast<const Vector*>(address); }

/// Element (m, k) of a left side is data[m * row + k * step].
struct Left {
  const float* data;
  int64_t row, step;
};

/// A tile of registers: out [kTileRows, kTileColumns] = (itself, where kAdds) + left right, over `depth`.
template <bool kAdds>
ZERO_INLINE void tile(Left left, const float* right, int64_t right_row, float* out, int64_t out_row,
                      int64_t depth) {
  Vector sum[kTileRows][2];
  for (int64_t m = 0; m < kTileRows; ++m)
    for (int64_t half = 0; half < 2; ++half)
      sum[m][half] = kAdds ? at(out + m * out_row + half * kLanes) : Vector{};
  for (int64_t k = 0; k < depth; ++k) {
    const Vector first = at(right + k * right_row), second = at(right + k * right_row + kLanes);
    const float* column = left.data + k * left.step;
    for (int64_t m = 0; m < kTileRows; ++m) {
      sum[m][0] += column[m * left.row] * first;
      sum[m][1] += column[m * left.row] * second;
    }
  }
  for (int64_t m = 0; m < kTileRows; ++m)
    for (int64_t half = 0; half < 2; ++half) at(out + m * out_row + half * kLanes) = sum[m][half];
}

/// out [rows, columns] (+)= left [rows, depth] right [depth, columns]; rows and columns are multiples of
/// kBlock.
template <bool kAdds>
void multiply(int64_t rows, int64_t columns, int64_t depth, Left left, const float* right, int64_t right_row,
              float* out, int64_t out_row) {
  for (int64_t n = 0; n < columns; n += kTileColumns)
    for (int64_t m = 0; m < rows; m += kTileRows)
      tile<kAdds>({left.data + m * left.row, left.row, left.step}, right + n, right_row,
                  out + m * out_row + n, out_row, depth);
}

/// out [kBlock, panels * kBlock] = left [kBlock, row] times transposed panels, whose last rows are padding.
void multiply_panels(int64_t panels, int64_t width, const float* left, int64_t row, const float* transposed,
                     float* out, int64_t out_row) {
  for (int64_t panel = 0; panel < panels; ++panel)
    multiply<false>(kBlock, kBlock, width, {left, row, 1}, transposed + panel * row * kBlock, kBlock,
                    out + panel * kBlock, out_row);
}

template <class T>
const T* row_of(Rows rows, int64_t row) {
  return static_cast<const T*>(rows.data) + row * rows.stride;
}

/// Rows [begin, end) times `factor` into [padded, row] of fp32, zeros around them.
template <class T>
void widen(Rows from, int64_t begin, int64_t end, int64_t width, float factor, float* to, int64_t padded,
           int64_t row) {
  for (int64_t i = 0; i < padded; ++i) {
    float* target = to + i * row;
    int64_t done = 0;
    if (begin + i < end) {
      const T* source = row_of<T>(from, begin + i);
      for (; done < width; ++done) target[done] = to_float(source[done]) * factor;
    }
    for (; done < row; ++done) target[done] = 0;
  }
}

/// Four rows of four elements, `from_row` apart, to four rows `to_row` apart.
ZERO_INLINE void transpose_four(const float* from, int64_t from_row, float* to, int64_t to_row) {
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  const auto row = [&](int64_t i) { return *reinterpret_cast<const Four*>(from + i * from_row); };
  const Four low01 = __builtin_shufflevector(row(0), row(1), 0, 4, 1, 5),
             high01 = __builtin_shufflevector(row(0), row(1), 2, 6, 3, 7),
             low23 = __builtin_shufflevector(row(2), row(3), 0, 4, 1, 5),
             high23 = __builtin_shufflevector(row(2), row(3), 2, 6, 3, 7);
  const auto put = [&](int64_t i, Four value) { *reinterpret_cast<Four*>(to + i * to_row) = value; };
  put(0, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
  put(1, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
  put(2, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
  put(3, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
}

/// [padded keys, row] to panels [row, kBlock].
void transpose(const float* from, int64_t padded, int64_t row, float* to) {
  for (int64_t panel = 0; panel < padded; panel += kBlock)
    for (int64_t d = 0; d < row; d += 4)
      for (int64_t j = 0; j < kBlock; j += 4)
        transpose_four(from + (panel + j) * row + d, row, to + panel * row + d * kBlock + j, kBlock);
}

/// Rows of fp32 times `factor`, rounded to the elements' type.
template <class T>
void narrow(const float* from, int64_t row, int64_t rows, int64_t width, float factor, WritableRows to) {
  for (int64_t i = 0; i < rows; ++i) {
    T* target = static_cast<T*>(to.data) + i * to.stride;
    for (int64_t d = 0; d < width; ++d) store(target[d], from[i * row + d] * factor);
  }
}

WritableRows behind(WritableRows rows, int64_t count, bool half) {
  return {static_cast<char*>(rows.data) + count * rows.stride * (half ? 2 : 4), rows.stride};
}

int64_t keys_seen(const Shape& shape, int64_t query) {
  return shape.causal ? least(shape.keys, query + 1) : shape.keys;
}

/// x[i] = exp(x[i] - shift) for the first `seen`, zeros up to `padded`; their sum.
float exponentials(float* x, int64_t seen, int64_t padded, float shift) {
  constexpr int64_t kSums = 64;
  for (int64_t i = seen; i < padded; ++i) x[i] = -std::numeric_limits<float>::infinity();
  float sums[kSums] = {};
  const int64_t whole = padded / kSums * kSums;
  for (int64_t begin = 0; begin < whole; begin += kSums)
    for (int64_t i = 0; i < kSums; ++i) sums[i] += x[begin + i] = exp_of(x[begin + i] - shift);
  for (int64_t i = whole; i < padded; ++i) sums[i - whole] += x[i] = exp_of(x[i] - shift);
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

template <class T>
void forward_of(const Shape& shape, Rows queries, Rows keys, Rows values, WritableRows out, float* log_sums,
                float* scratch) {
  const Sizes sizes(shape);
  Scratch take(scratch);
  const auto [wide_values, transposed_keys, query, scores, result] = ForwardParts(take, sizes);

  widen<T>(keys, 0, shape.keys, shape.width, 1, wide_values, sizes.keys, sizes.row);
  transpose(wide_values, sizes.keys, sizes.row, transposed_keys);
  widen<T>(values, 0, shape.keys, shape.width, 1, wide_values, sizes.keys, sizes.row);
  for (int64_t begin = 0; begin < shape.queries; begin += kBlock) {
    const int64_t end = least(begin + kBlock, shape.queries), panels = sizes.panels_for(shape, end);
    widen<T>(queries, begin, end, shape.width, shape.scale, query, kBlock, sizes.row);
    multiply_panels(panels, shape.width, query, sizes.row, transposed_keys, scores, sizes.keys);
    float inverses[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) {
      float* const row = scores + i * sizes.keys;
      const int64_t seen = keys_seen(shape, least(begin + i, shape.queries - 1));
      const float most = greatest(row, seen);
      const float sum = exponentials(row, seen, panels * kBlock, most);
      inverses[i] = 1 / sum;
      if (begin + i < end) log_sums[begin + i] = most + std::log(sum);
    }
    multiply<false>(kBlock, sizes.row, panels * kBlock, {scores, sizes.keys, 1}, wide_values, sizes.row,
                    result, sizes.row);
    for (int64_t i = begin; i < end; ++i)
      narrow<T>(result + (i - begin) * sizes.row, sizes.row, 1, shape.width, inverses[i - begin],
                behind(out, i, shape.half));
  }
}

/// Sum over the width of out times its gradient, which is what softmax's backward takes from each element of
/// a row.
float row_product(const float* a, const float* b, int64_t n) {
  float sums[kLanes] = {};
  for (int64_t begin = 0; begin < n; begin += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) sums[i] += a[begin + i] * b[begin + i];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

template <class T>
void backward_of(const Shape& shape, Rows queries, Rows keys, Rows values, Rows out, Rows out_gradient,
                 const float* log_sums, const Gradients& gradients, float* scratch) {
  const Sizes sizes(shape);
  Scratch take(scratch);
  const auto [wide_keys, transposed_keys, transposed_values, of_keys, of_values, query, upstream, result,
              weights, of_scores] = BackwardParts(take, sizes);

  widen<T>(values, 0, shape.keys, shape.width, 1, wide_keys, sizes.keys, sizes.row);
  transpose(wide_keys, sizes.keys, sizes.row, transposed_values);
  widen<T>(keys, 0, shape.keys, shape.width, 1, wide_keys, sizes.keys, sizes.row);
  transpose(wide_keys, sizes.keys, sizes.row, transposed_keys);
  for (int64_t i = 0; i < sizes.keys * sizes.row; ++i) of_keys[i] = of_values[i] = 0;
  for (int64_t begin = 0; begin < shape.queries; begin += kBlock) {
    const int64_t end = least(begin + kBlock, shape.queries), panels = sizes.panels_for(shape, end);
    const int64_t seen_by_block = panels * kBlock;
    widen<T>(queries, begin, end, shape.width, shape.scale, query, kBlock, sizes.row);
    widen<T>(out_gradient, begin, end, shape.width, 1, upstream, kBlock, sizes.row);
    widen<T>(out, begin, end, shape.width, 1, result, kBlock, sizes.row);
    multiply_panels(panels, shape.width, query, sizes.row, transposed_keys, weights, sizes.keys);
    multiply_panels(panels, shape.width, upstream, sizes.row, transposed_values, of_scores, sizes.keys);
    for (int64_t i = 0; i < kBlock; ++i) {
      float *const weight = weights + i * sizes.keys, *const of_score = of_scores + i * sizes.keys;
      // Of the padding's queries nothing is seen.
      const int64_t seen = begin + i < end ? keys_seen(shape, begin + i) : 0;
      exponentials(weight, seen, seen_by_block, begin + i < end ? log_sums[begin + i] : 0);
      const float common = row_product(result + i * sizes.row, upstream + i * sizes.row, sizes.row);
      for (int64_t j = 0; j < seen_by_block; ++j) of_score[j] = weight[j] * (of_score[j] - common);
    }
    multiply<true>(seen_by_block, sizes.row, kBlock, {weights, 1, sizes.keys}, upstream, sizes.row, of_values,
                   sizes.row);
    multiply<true>(seen_by_block, sizes.row, kBlock, {of_scores, 1, sizes.keys}, query, sizes.row, of_keys,
                   sizes.row);
    multiply<false>(kBlock, sizes.row, seen_by_block, {of_scores, sizes.keys, 1}, wide_keys, sizes.row,
                    result, sizes.row);
    narrow<T>(result, sizes.row, end - begin, shape.width, shape.scale,
              behind(gradients.queries, begin, shape.half));
  }
  narrow<T>(of_keys, sizes.row, shape.keys, shape.width, 1, gradients.keys);
  narrow<T>(of_values, sizes.row, shape.keys, shape.width, 1, gradients.values);
}

void forward(const Shape& shape, Rows queries, Rows keys, Rows values, WritableRows out, float* log_sums,
             float* scratch) {
  (shape.half ? forward_of<Bf16> : forward_of<float>)(shape, queries, keys, values, out, log_sums, scratch);
}

void backward(const Shape& shape, Rows queries, Rows keys, Rows values, Rows out, Rows out_gradient,
              const float* log_sums, const Gradients& gradients, float* scratch) {
  (shape.half ? backward_of<Bf16> : backward_of<float>)(shape, queries, keys, values, out, out_gradient,
                                                        log_sums, gradients, scratch);
}

}  // namespace
}  // namespace zero::attention

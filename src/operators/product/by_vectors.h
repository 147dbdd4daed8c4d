#pragma once
// Products of fp32 or bf16 matrices by vectors of fp32. Only for files that are compiled for vectors and
// fused products; each has its own copy.
//
// A tile of the output is kRows rows of the left side, element by element, by kColumns of the right one,
// which lie beside each other in vectors; its sums stay in registers for a pass over k. The right side is
// packed in panels of kColumns, which stay in the second-level cache; the left one is read where it is, if it
// is fp32 along k (after Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication). bf16 is
// widened as it is packed, so a product does what one of fp32 does; its sums are rounded once, after the last
// pass.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "operators/product/cut.h"
#include "operators/product/prefetch.h"
#include "operators/product/product.h"
#include "operators/product/vector.h"

namespace zero::product {
namespace {

constexpr int64_t kMostDepth = 768;               // of one pass over k
constexpr int64_t kStep = 16;                     // of k between requests of lines for later
constexpr int64_t kGroup = 96;                    // rows that are multiplied by all that is kept
constexpr int64_t kKeptBytes = int64_t{4} << 20;  // of the right side, packed
constexpr int64_t kMostTurned = 1024;             // columns of sums that wait to be turned

/// Where a tile's sums begin and end. A stride of 0 is the same row again.
template <class To>
struct Sums {
  const float* before;  // they are added to this
  int64_t before_stride;
  const float* after;  // one row, which is added to each of them
  To* to;
  int64_t to_stride;
  bool streamed;  // past the caches, where `to` and its rows begin with a line
};

template <bool kStreamed, int64_t kUsed, class To>
[[gnu::always_inline]] inline void finish(const Vector (&sums)[kRows][kUsed], const Sums<To>& at) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int64_t v = 0; v < kUsed; ++v) {
      const int64_t column = v * kLanes;
      const Vector sum =
          load(at.before + i * at.before_stride + column) + sums[i][v] + load(at.after + column);
      To* const to = at.to + i * at.to_stride + column;
      kStreamed ? stream(to, sum) : store(to, sum);
    }
}

/// Rows of the left side: packed, [depth, kRows], or `stride` apart.
struct Left {
  const float* data;
  int64_t stride;
};

/// The first kUsed vectors of a tile: to = before + left [kRows, depth] * right [depth, kColumns] + after.
template <bool kPacked, int64_t kUsed, class To, class T>
[[gnu::noinline]] void multiply_vectors(const Left& rows, const float* right, int64_t depth,
                                        const Sums<To>& at, Prefetch<T>& ahead) {
  Vector sums[kRows][kUsed] = {};
  const float* left = rows.data;
  const int64_t stride = rows.stride;
  const auto step = [&]() __attribute__((always_inline)) {
    Vector r[kUsed];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kUsed; ++v) r[v] = load(right + v * kLanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      const float l = kPacked ? left[i] : left[i * stride];
#pragma GCC unroll 4
      for (int64_t v = 0; v < kUsed; ++v) sums[i][v] += r[v] * l;
    }
    right += kColumns;
    left += kPacked ? kRows : 1;
  };
  int64_t k = 0;
  for (; k + kStep <= depth; k += kStep) {
    ahead.step();
#pragma GCC unroll 4
    for (int64_t i = 0; i < kStep; ++i) step();
  }
  for (; k < depth; ++k) step();
  at.streamed ? finish<true>(sums, at) : finish<false>(sums, at);
}

/// A tile of which `columns` are wanted: no more vectors than they need.
template <bool kPacked, int64_t kUsed = kVectors, class To, class T>
void multiply_tile(int64_t columns, const Left& rows, const float* right, int64_t depth, const Sums<To>& at,
                   Prefetch<T>& ahead) {
  if constexpr (kUsed > 1)
    if (columns <= (kUsed - 1) * kLanes)
      return multiply_tile<kPacked, kUsed - 1>(columns, rows, right, depth, at, ahead);
  multiply_vectors<kPacked, kUsed>(rows, right, depth, at, ahead);
}

int64_t up_to(int64_t count, int64_t unit) { return blocks(count, unit) * unit; }

/// Rows that meet in few sets of the cache are copied, and those that are to be widened.
bool is_copied(const Fp32Side& left) { return left.stride * static_cast<int64_t>(sizeof(float)) % 2048 == 0; }
bool is_copied(const Bf16Side& /*left*/) { return true; }

/// Which side gives rows and which vectors, and which of the two is kept while the other passes by.
template <class T>
struct Plan {
  bool transposed;  // the rows are the output's columns
  bool right_is_kept;
  bool sums_wait;  // in fp32, apart from the output: to be turned, or for the next pass to be rounded once
  SideOf<T> left, right;
  int64_t rows, columns, depth;
  int64_t pass;              // of depth, that sums stay in registers for
  int64_t kept_columns = 0;  // of one part of the right side, where it is kept

  explicit Plan(const ProductOf<T>& product) : depth(product.depth) {
    const bool both = product.left.along_k && product.right.along_k;
    transposed = both ? product.columns > product.rows : !product.left.along_k && product.right.along_k;
    left = transposed ? product.right : product.left;
    right = transposed ? product.left : product.right;
    rows = transposed ? product.columns : product.rows;
    columns = transposed ? product.rows : product.columns;
    pass = even_part(depth, kMostDepth, kStep);
    sums_wait = transposed || (kIsHalf<T> && pass < depth);
    right_is_kept = transposed || !left.along_k || columns <= rows;
    if (!right_is_kept) return;
    const int64_t fit = kKeptBytes / static_cast<int64_t>(sizeof(float)) / depth;
    const int64_t most = std::max(kColumns, transposed ? std::min(fit, kMostTurned) : fit);
    kept_columns = even_part(columns, most, kColumns);
  }

  int64_t parts() const { return right_is_kept ? blocks(rows, kGroup) : blocks(columns, kColumns); }
  int64_t left_stride() const { return pass + kLanes; }
  /// Rows whose left side is packed or read together.
  int64_t group_rows() const { return right_is_kept ? kGroup : up_to(rows, kRows); }
  int64_t right_numel() const { return right_is_kept ? kept_columns * depth : kColumns * pass; }
  int64_t left_numel() const { return group_rows() * left_stride(); }
  int64_t after_numel() const { return std::max(kept_columns, kColumns); }
  /// From one row of waiting sums to the next.
  int64_t waiting_stride() const { return right_is_kept ? kept_columns : up_to(columns, kColumns); }
  int64_t waiting_numel() const { return sums_wait ? group_rows() * waiting_stride() : 0; }
  int64_t scratch_numel() const {
    return right_numel() + left_numel() + kRows * kColumns + after_numel() + waiting_numel();
  }
};

template <class T>
class Multiplication {
 public:
  Multiplication(const ProductOf<T>& product, float* scratch) : product_(product), plan_(product) {
    const auto take = [&](int64_t numel) { return std::exchange(scratch, scratch + numel); };
    right_ = take(plan_.right_numel());
    left_ = take(plan_.left_numel());
    edge_ = take(kRows * kColumns);
    after_ = take(plan_.after_numel());
    waiting_ = take(plan_.waiting_numel());
    // What a gradient of a weight or a forward writes is read later; what backward hands on is read at once.
    const bool whole_lines = !plan_.transposed || kLanes * sizeof(float) == 64;
    streamed_ = plan_.right_is_kept && whole_lines && are_lines(product.out, product.out_stride);
  }

  void run(int64_t begin, int64_t end) {
    if (plan_.right_is_kept)
      keep_right(begin * kGroup, std::min(end * kGroup, plan_.rows));
    else
      keep_left(begin * kColumns, std::min(end * kColumns, plan_.columns));
    _mm_sfence();
  }

 private:
  struct Part {
    int64_t row, rows, column, columns, k, depth;
  };

  void keep_right(int64_t begin, int64_t end) {
    for (int64_t column = 0; column < plan_.columns; column += plan_.kept_columns) {
      const int64_t columns = std::min(plan_.kept_columns, plan_.columns - column);
      const int64_t panels = up_to(columns, kColumns);
      for (int64_t k = 0; k < plan_.depth; k += plan_.pass)
        pack(plan_.right, column, columns, k, std::min(plan_.pass, plan_.depth - k), kColumns,
             right_ + k * panels);
      take_bias(column, columns);
      for (int64_t row = begin; row < end; row += kGroup) {
        const int64_t rows = std::min(kGroup, end - row);
        for (int64_t k = 0; k < plan_.depth; k += plan_.pass) {
          const Part part{row, rows, column, columns, k, std::min(plan_.pass, plan_.depth - k)};
          const bool last = k + part.depth >= plan_.depth;
          const int64_t next_row = last ? row + rows : row, next_k = last ? 0 : k + part.depth;
          ahead_ = Prefetch<T>(plan_.left, next_row, std::min(kGroup, end - next_row), next_k,
                               std::min(plan_.pass, plan_.depth - next_k),
                               blocks(rows, kRows) * (panels / kColumns) * blocks(part.depth, kStep));
          take_left(part);
          for (int64_t panel = 0; panel < columns; panel += kColumns)
            for (int64_t first = 0; first < rows; first += kRows)
              multiply_block(part, first, panel, right_ + k * panels + panel * part.depth);
        }
        if (plan_.transposed) store_turned(row, rows, column, columns);
      }
    }
  }

  void keep_left(int64_t begin, int64_t end) {
    for (int64_t k = 0; k < plan_.depth; k += plan_.pass) {
      Part part{0, plan_.rows, 0, 0, k, std::min(plan_.pass, plan_.depth - k)};
      take_left(part);
      for (int64_t column = begin; column < end; column += kColumns) {
        part.column = column;
        part.columns = std::min(kColumns, end - column);
        take_bias(column, part.columns);
        pack(plan_.right, column, part.columns, k, part.depth, kColumns, right_);
        const bool last = column + kColumns >= end;
        const int64_t next = last ? begin : column + kColumns, next_k = last ? k + plan_.pass : k;
        ahead_ = Prefetch<T>(plan_.right, next, std::min(kColumns, end - next), next_k,
                             std::clamp(plan_.depth - next_k, int64_t{0}, plan_.pass),
                             blocks(plan_.rows, kRows) * blocks(part.depth, kStep));
        for (int64_t first = 0; first < plan_.rows; first += kRows) multiply_block(part, first, 0, right_);
      }
    }
  }

  /// What the sums end with: the bias, where the output's rows are ours.
  void take_bias(int64_t column, int64_t columns) {
    std::fill_n(after_, plan_.after_numel(), 0.0F);
    if (!plan_.transposed && product_.bias != nullptr) copy_row(after_, product_.bias + column, columns);
  }

  /// Rows that lie along k may be multiplied where they are.
  bool takes_copy(const Part& part, int64_t row) const {
    return is_copied(plan_.left) || row + kRows > part.rows;
  }

  void take_left(const Part& part) {
    if (!plan_.left.along_k) return pack(plan_.left, part.row, part.rows, part.k, part.depth, kRows, left_);
    const int64_t rows = up_to(part.rows, kRows);
    for (int64_t row = 0; row < rows; ++row) {
      if (!takes_copy(part, row / kRows * kRows)) continue;
      float* const to = left_ + row * plan_.left_stride();
      if (row < part.rows)
        copy_row(to, plan_.left.data + (part.row + row) * plan_.left.stride + part.k, part.depth);
      else
        std::fill_n(to, part.depth, 0.0F);
    }
  }

  void multiply_block(const Part& part, int64_t row, int64_t panel, const float* right) {
    const bool first = part.k == 0, last = part.k + part.depth >= plan_.depth;
    T* const out = product_.out + (part.row + row) * product_.out_stride + part.column + panel;
    const auto sums = sums_of(part, row, panel, out);
    const float* const before = first ? zeros_ : sums.data;
    const int64_t before_stride = first ? 0 : sums.stride;
    const int64_t rows = std::min(kRows, part.rows - row), columns = std::min(kColumns, part.columns - panel);
    if (plan_.transposed || (plan_.sums_wait && !last))
      return multiply<float>(part, row, columns, right,
                             {before, before_stride, zeros_, sums.data, sums.stride, false});
    const float* const after = last ? after_ + panel : zeros_;
    if (rows == kRows && columns == kColumns)
      return multiply<T>(part, row, columns, right,
                         {before, before_stride, after, out, product_.out_stride, streamed_ && last});
    multiply<float>(part, row, columns, right, {zeros_, 0, zeros_, edge_, kColumns, false});
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        store(out + i * product_.out_stride + j,
              before[i * before_stride + j] + edge_[i * kColumns + j] + after[j]);
  }

  /// Where a tile's sums are between two passes: of fp32 in the output itself.
  struct Waiting {
    float* data;
    int64_t stride;
  };
  Waiting sums_of(const Part& part, int64_t row, int64_t panel, T* out) const {
    if constexpr (!kIsHalf<T>)
      if (!plan_.sums_wait) return {out, product_.out_stride};
    const int64_t stride = plan_.waiting_stride(), column = plan_.right_is_kept ? panel : part.column + panel;
    return {waiting_ + row * stride + column, stride};
  }

  template <class To>
  void multiply(const Part& part, int64_t row, int64_t columns, const float* right, const Sums<To>& sums) {
    const SideOf<T>& left = plan_.left;
    if (!left.along_k)
      return multiply_tile<true>(columns, {left_ + row * part.depth, 0}, right, part.depth, sums, ahead_);
    Left rows{left_ + row * plan_.left_stride(), plan_.left_stride()};
    if constexpr (!kIsHalf<T>)
      if (!takes_copy(part, row)) rows = {left.data + (part.row + row) * left.stride + part.k, left.stride};
    multiply_tile<false>(columns, rows, right, part.depth, sums, ahead_);
  }

  void store_turned(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    for (int64_t j = 0; j < columns; j += kLanes)
      for (int64_t i = 0; i < rows; i += kLanes)
        copy_turned<float, T>({waiting_ + i * plan_.kept_columns + j, plan_.kept_columns,
                               product_.out + (column + j) * product_.out_stride + row + i,
                               product_.out_stride, std::min(kLanes, rows - i), std::min(kLanes, columns - j),
                               product_.bias != nullptr ? product_.bias + row + i : nullptr, streamed_});
  }

  const ProductOf<T>& product_;
  const Plan<T> plan_;
  float *right_, *left_, *edge_, *after_, *waiting_;
  alignas(64) const float zeros_[kColumns] = {};
  bool streamed_;
  Prefetch<T> ahead_;
};

template <class T>
int64_t parts_of(const ProductOf<T>& product) {
  return Plan<T>(product).parts();
}

template <class T>
int64_t scratch_bytes(const ProductOf<T>& product) {
  return Plan<T>(product).scratch_numel() * static_cast<int64_t>(sizeof(float));
}

template <class T>
void multiply(const ProductOf<T>& product, int64_t begin, int64_t end, char* scratch) {
  Multiplication<T>(product, reinterpret_cast<float*>(scratch)).run(begin, end);
}

template <class T>
constexpr KernelsOf<T> kernels_named(const char* name) {
  constexpr bool kHalf = kIsHalf<T>;  // what LibTorch has then is no rival
  return {.name = name,
          .fewest_rows = kHalf ? 2 : 16,
          .fewest_multiplications = kHalf ? 1 << 12 : 1 << 21,
          .in_batches = kHalf,
          .parts_of = &parts_of<T>,
          .scratch_bytes = &scratch_bytes<T>,
          .multiply = &multiply<T>};
}

}  // namespace
}  // namespace zero::product

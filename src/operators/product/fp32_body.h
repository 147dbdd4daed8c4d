#pragma once
// Products of fp32 matrices by vectors. Only for files that are compiled for vectors and fused products; each
// has its own copy.
//
// A tile of the output is kRows rows of the left side, element by element, by kColumns of the right one,
// which lie beside each other in vectors; its sums stay in registers for a pass over k. The right side is
// packed in panels of kColumns, which stay in the second-level cache; the left one is read where it is, if it
// lies along k (after Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication).

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "operators/product/cut.h"
#include "operators/product/fp32_vector.h"
#include "operators/product/prefetch.h"
#include "operators/product/product.h"

namespace zero::product {
namespace {

constexpr int64_t kMostDepth = 768;               // of one pass over k
constexpr int64_t kStep = 16;                     // of k between requests of lines for later
constexpr int64_t kGroup = 96;                    // rows that are multiplied by all that is kept
constexpr int64_t kKeptBytes = int64_t{4} << 20;  // of the right side, packed
constexpr int64_t kMostTurned = 1024;             // columns of sums that wait to be turned

/// Where a tile's sums begin and end. A stride of 0 is the same row again.
struct Sums {
  const float* before;  // they are added to this
  int64_t before_stride;
  const float* after;  // one row, which is added to each of them
  float* to;
  int64_t to_stride;
  bool streamed;  // past the caches, where `to` and its rows begin with a line
};

template <bool kStreamed, int64_t kUsed>
[[gnu::always_inline]] inline void finish(const Vector (&sums)[kRows][kUsed], const Sums& at) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int64_t v = 0; v < kUsed; ++v) {
      const int64_t column = v * kLanes;
      const Vector sum =
          load(at.before + i * at.before_stride + column) + sums[i][v] + load(at.after + column);
      float* const to = at.to + i * at.to_stride + column;
      kStreamed ? stream(to, sum) : store(to, sum);
    }
}

/// Rows of the left side: packed, [depth, kRows], or `stride` apart.
struct Left {
  const float* data;
  int64_t stride;
};

/// The first kUsed vectors of a tile: to = before + left [kRows, depth] * right [depth, kColumns] + after.
template <bool kPacked, int64_t kUsed>
[[gnu::noinline]] void multiply_vectors(const Left& rows, const float* right, int64_t depth, const Sums& at,
                                        Prefetch<float>& ahead) {
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
template <bool kPacked, int64_t kUsed = kVectors>
void multiply_tile(int64_t columns, const Left& rows, const float* right, int64_t depth, const Sums& at,
                   Prefetch<float>& ahead) {
  if constexpr (kUsed > 1)
    if (columns <= (kUsed - 1) * kLanes)
      return multiply_tile<kPacked, kUsed - 1>(columns, rows, right, depth, at, ahead);
  multiply_vectors<kPacked, kUsed>(rows, right, depth, at, ahead);
}

int64_t up_to(int64_t count, int64_t unit) { return blocks(count, unit) * unit; }

bool meet_in_cache(const Fp32Side& side) {
  return side.stride * static_cast<int64_t>(sizeof(float)) % 2048 == 0;
}

/// Which side gives rows and which vectors, and which of the two is kept while the other passes by.
struct Plan {
  bool transposed;  // the rows are the output's columns
  bool right_is_kept;
  Fp32Side left, right;
  int64_t rows, columns, depth;
  int64_t pass;              // of depth, that sums stay in registers for
  int64_t kept_columns = 0;  // of one part of the right side, where it is kept

  explicit Plan(const Fp32Product& product) : depth(product.depth) {
    const bool both = product.left.along_k && product.right.along_k;
    transposed = both ? product.columns > product.rows : !product.left.along_k && product.right.along_k;
    left = transposed ? product.right : product.left;
    right = transposed ? product.left : product.right;
    rows = transposed ? product.columns : product.rows;
    columns = transposed ? product.rows : product.columns;
    pass = even_part(depth, kMostDepth, kStep);
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
  int64_t scratch_numel() const {
    const int64_t right_numel = right_is_kept ? kept_columns * depth : kColumns * pass;
    const int64_t left_numel = group_rows() * left_stride();
    const int64_t sums_numel = transposed ? kGroup * kept_columns : 0;
    return right_numel + left_numel + sums_numel + kRows * kColumns + std::max(kept_columns, kColumns);
  }
};

class Multiplication {
 public:
  Multiplication(const Fp32Product& product, float* scratch) : product_(product), plan_(product) {
    const auto take = [&](int64_t numel) { return std::exchange(scratch, scratch + numel); };
    right_ = take(plan_.right_is_kept ? plan_.kept_columns * plan_.depth : kColumns * plan_.pass);
    left_ = take(plan_.group_rows() * plan_.left_stride());
    edge_ = take(kRows * kColumns);
    after_ = take(std::max(plan_.kept_columns, kColumns));
    turned_ = take(plan_.transposed ? kGroup * plan_.kept_columns : 0);
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
          ahead_ = Prefetch<float>(plan_.left, next_row, std::min(kGroup, end - next_row), next_k,
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
        ahead_ = Prefetch<float>(plan_.right, next, std::min(kColumns, end - next), next_k,
                                 std::clamp(plan_.depth - next_k, int64_t{0}, plan_.pass),
                                 blocks(plan_.rows, kRows) * blocks(part.depth, kStep));
        for (int64_t first = 0; first < plan_.rows; first += kRows) multiply_block(part, first, 0, right_);
      }
    }
  }

  /// What the sums end with: the bias, where the output's rows are ours.
  void take_bias(int64_t column, int64_t columns) {
    std::fill_n(after_, std::max(plan_.kept_columns, kColumns), 0.0F);
    if (!plan_.transposed && product_.bias != nullptr) std::copy_n(product_.bias + column, columns, after_);
  }

  /// Rows that lie along k are multiplied where they are, unless they meet in few sets of the cache.
  bool is_copied(const Part& part, int64_t row) const {
    return meet_in_cache(plan_.left) || row + kRows > part.rows;
  }

  void take_left(const Part& part) {
    if (!plan_.left.along_k) return pack(plan_.left, part.row, part.rows, part.k, part.depth, kRows, left_);
    const int64_t rows = up_to(part.rows, kRows);
    for (int64_t row = 0; row < rows; ++row) {
      if (!is_copied(part, row / kRows * kRows)) continue;
      float* const to = left_ + row * plan_.left_stride();
      const auto bytes = static_cast<size_t>(part.depth) * sizeof *to;
      if (row < part.rows)
        std::memcpy(to, plan_.left.data + (part.row + row) * plan_.left.stride + part.k, bytes);
      else
        std::memset(to, 0, bytes);
    }
  }

  void multiply_block(const Part& part, int64_t row, int64_t panel, const float* right) {
    const bool turned = plan_.transposed, first = part.k == 0, last = part.k + part.depth >= plan_.depth;
    const int64_t stride = turned ? plan_.kept_columns : product_.out_stride;
    float* const to = turned ? turned_ + row * stride + panel
                             : product_.out + (part.row + row) * stride + part.column + panel;
    const Sums sums{
        first ? zeros_ : to,         first ? 0 : stride, last ? after_ + panel : zeros_, to, stride,
        streamed_ && last && !turned};
    const int64_t rows = std::min(kRows, part.rows - row), columns = std::min(kColumns, part.columns - panel);
    if (turned || (rows == kRows && columns == kColumns)) return multiply(part, row, columns, right, sums);
    multiply(part, row, columns, right, {zeros_, 0, zeros_, edge_, kColumns, false});
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        to[i * stride + j] =
            sums.before[i * sums.before_stride + j] + edge_[i * kColumns + j] + sums.after[j];
  }

  void multiply(const Part& part, int64_t row, int64_t columns, const float* right, const Sums& sums) {
    const Fp32Side& left = plan_.left;
    if (!left.along_k)
      return multiply_tile<true>(columns, {left_ + row * part.depth, 0}, right, part.depth, sums, ahead_);
    const Left rows = is_copied(part, row)
                          ? Left{left_ + row * plan_.left_stride(), plan_.left_stride()}
                          : Left{left.data + (part.row + row) * left.stride + part.k, left.stride};
    multiply_tile<false>(columns, rows, right, part.depth, sums, ahead_);
  }

  void store_turned(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    for (int64_t j = 0; j < columns; j += kLanes)
      for (int64_t i = 0; i < rows; i += kLanes)
        copy_turned({turned_ + i * plan_.kept_columns + j, plan_.kept_columns,
                     product_.out + (column + j) * product_.out_stride + row + i, product_.out_stride,
                     std::min(kLanes, rows - i), std::min(kLanes, columns - j),
                     product_.bias != nullptr ? product_.bias + row + i : nullptr, streamed_});
  }

  const Fp32Product& product_;
  const Plan plan_;
  float *right_, *left_, *edge_, *after_, *turned_;
  alignas(64) const float zeros_[kColumns] = {};
  bool streamed_;
  Prefetch<float> ahead_;
};

int64_t parts_of(const Fp32Product& product) { return Plan(product).parts(); }

int64_t scratch_bytes(const Fp32Product& product) {
  return Plan(product).scratch_numel() * static_cast<int64_t>(sizeof(float));
}

void multiply(const Fp32Product& product, int64_t begin, int64_t end, char* scratch) {
  Multiplication(product, reinterpret_cast<float*>(scratch)).run(begin, end);
}

}  // namespace
}  // namespace zero::product

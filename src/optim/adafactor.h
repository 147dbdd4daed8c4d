#pragma once
// Adafactor's second moments: means over rows and columns of parameters whose elements lie on several ranks.
//
// A step passes four times: largest magnitudes of rows and columns; their sums of squares, each rounded to a
// multiple of a power of two that follows from the largest (relative to that 2^-51 times the number of terms
// at most), so that adding is exact; the squares of the updates; the update. Whole matrices need not be
// gathered: what travels is two numbers for each row and column, beside the 8 bytes an element that sharing
// matrices out (muon.h) would take.

#include <cstdint>
#include <span>
#include <vector>

#include "optim/kernels/kernels.h"
#include "optim/shard_optimizer.h"

namespace zero::adafactor {

/// Rows and columns of a shape's last two dimensions, of all its matrices; less than two dimensions are one
/// row.
struct Sizes {
  int64_t matrices = 1, rows = 1, cols = 1;
  bool has_rows = false;
  int64_t all_rows() const { return matrices * rows; }
  int64_t all_cols() const { return matrices * cols; }
};
Sizes sizes_of(std::span<const int64_t> shape);

/// The power of two that squares of fp32 values are multiplied by, for the sum of `terms` of them to be
/// below 2^52, each below 2^51: cut off to whole numbers, any order gives the same bits. `largest`: bits of
/// the largest magnitude.
double scale_of(int32_t largest, int64_t terms);

/// One parameter in one step.
struct Parameter {
  int number = 0, unit = 0;
  Sizes sizes;
  bool is_used = false;
  int64_t row_state = 0, column_state = 0;  // where its means begin in the unit's states
  kernels::Rates rates;
  std::vector<double> row_sums, column_sums;  // means, once they are known
  std::vector<float> row_factors, column_factors;
  float most = 0;                          // of a factor
  double squares = 0, update_squares = 0;  // of itself, of its update: sums
};

/// The rate of a parameter whose mean square is this.
double rate_of(const Adafactor& rule, double lr, int64_t step, double mean_square);

}  // namespace zero::adafactor

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
#include "zero/parameter_part.h"

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

/// Values of all rows or columns of the whole, of which own ones are at `places`.
template <class T>
std::vector<T> own_of(const std::vector<T>& whole, std::span<const int64_t> places) {
  std::vector<T> own;
  own.reserve(places.size());
  for (const int64_t place : places) own.push_back(whole[static_cast<size_t>(place)]);
  return own;
}
/// The other way; elsewhere 0.
template <class T>
std::vector<double> whole_of(const std::vector<T>& own, std::span<const int64_t> places, bool is_cut,
                             int64_t count) {
  if (!is_cut) return {own.begin(), own.end()};
  std::vector<double> whole(static_cast<size_t>(count));
  for (size_t i = 0; i < own.size(); ++i) whole[static_cast<size_t>(places[i])] = static_cast<double>(own[i]);
  return whole;
}

/// One parameter in one step.
struct Parameter {
  int number = 0, unit = 0;
  Sizes sizes, own;  // of the whole, and of what this rank's module has
  const FactoredParameter* of = nullptr;
  bool is_used = false;
  int64_t row_state = 0, column_state = 0;  // where its means begin in the unit's states
  kernels::Rates rates;
  std::vector<double> row_sums, column_sums;       // means, once they are known
  std::vector<float> row_factors, column_factors;  // of its own
  float most = 0;                                  // of a factor
  double squares = 0, update_squares = 0;          // of itself, of its update: sums
  std::vector<double> digits;                      // of such a sum

  bool is_cut() const { return of != nullptr && of->is_cut; }
  template <class T>
  std::vector<T> own_rows(const std::vector<T>& whole) const {
    return is_cut() ? own_of(whole, of->row_places) : whole;
  }
  template <class T>
  std::vector<T> own_columns(const std::vector<T>& whole) const {
    return is_cut() ? own_of(whole, of->column_places) : whole;
  }
  /// Sums of the whole from those of what is here; 0 for others.
  template <class T>
  void set_sums(const std::vector<T>& rows, const std::vector<T>& columns) {
    const std::span<const int64_t> none;
    row_sums = whole_of(rows, is_cut() ? of->row_places : none, is_cut(), sizes.all_rows());
    column_sums = whole_of(columns, is_cut() ? of->column_places : none, is_cut(), sizes.all_cols());
  }
};

/// Which rows and columns of the whole those of a part are.
void set_part(const ParameterPart& part, FactoredParameter& of);

/// The rate of a parameter whose mean square is this.
double rate_of(const Adafactor& rule, double lr, int64_t step, double mean_square);

}  // namespace zero::adafactor

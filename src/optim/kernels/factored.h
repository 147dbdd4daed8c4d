#pragma once
// Passes over a matrix's gradient for rules that keep means over its rows and columns (optim/adafactor.h),
// for a vector type V as passes.h. Loops are plain: what they do to an element depends on nothing else, and
// sums are of whole numbers below 2^53, so that any order gives the same bits.

#include "optim/kernels/passes.h"

namespace zero::kernels {
namespace {

constexpr int64_t kFactoredRun = 1024;

/// use(row, column, elements in fp32, from, numel) for runs of elements within a row; `from`: of run.count.
template <class V, class Use>
void for_each_row_run(const MatrixRun& run, Use use) {
  alignas(64) float values[kFactoredRun];
  with_element(run.type, [&](auto element) {
    constexpr Element kType = element.value;
    if constexpr (kType != Element::none) {
      for (int64_t from = 0; from < run.count;) {
        const int64_t at = run.first + from, column = at % run.cols;
        const int64_t numel = std::min({kFactoredRun, run.count - from, run.cols - column});
        const int64_t whole = numel - numel % V::kWidth;
        for (int64_t i = 0; i < whole; i += V::kWidth)
          V::store(values + i, V::mul(load_as<V, kType>(run.gradient, from + i), V::set(run.scale)));
        for (int64_t i = whole; i < numel; ++i)
          values[i] = load_as<Scalar, kType>(run.gradient, from + i) * run.scale;
        const int64_t row = at / run.cols;
        use(row, row / run.rows * run.cols + column, static_cast<const float*>(values), from, numel);
        from += numel;
      }
    }
  });
}

template <class V>
void largest_of(const MatrixRun& run, int32_t* rows, int32_t* columns) {
  for_each_row_run<V>(run, [&](int64_t row, int64_t column, const float* values, int64_t, int64_t numel) {
    int32_t most = rows[row];
    int32_t* const to = columns + column;
    for (int64_t i = 0; i < numel; ++i) {
      const auto bits = static_cast<int32_t>(bits_of(values[i]) & 0x7fffffffU);
      to[i] = to[i] > bits ? to[i] : bits;
      most = most > bits ? most : bits;
    }
    rows[row] = most;
  });
}

/// To the nearest whole number; value < 2^51.
inline double whole_number(double value) {
  constexpr double kMagic = 0x1.8p52;
  return (value + kMagic) - kMagic;
}

template <class V>
void squares_of(const MatrixRun& run, const double* row_scales, const double* column_scales, double* row_sums,
                double* column_sums) {
  for_each_row_run<V>(run, [&](int64_t row, int64_t column, const float* values, int64_t, int64_t numel) {
    const double row_scale = row_scales[row];
    const double* const scales = column_scales + column;
    double* const sums = column_sums + column;
    double lanes[kLanes] = {};
    const int64_t whole = numel - numel % kLanes;
    for (int64_t i = 0; i < whole; i += kLanes)
      for (int64_t k = 0; k < kLanes; ++k) {
        const double value = values[i + k], square = value * value;
        sums[i + k] += whole_number(square * scales[i + k]);
        lanes[k] += whole_number(square * row_scale);
      }
    for (int64_t i = whole; i < numel; ++i) {
      const double value = values[i], square = value * value;
      sums[i] += whole_number(square * scales[i]);
      lanes[i - whole] += whole_number(square * row_scale);
    }
    row_sums[row] += sum_lanes(lanes);
  });
}

template <class V>
void directions_of(const MatrixRun& run, const float* row_factors, const float* column_factors, float most,
                   float* directions) {
  for_each_row_run<V>(run,
                      [&](int64_t row, int64_t column, const float* values, int64_t from, int64_t numel) {
                        const float row_factor = row_factors[row];
                        const float* const factors = column_factors + column;
                        float* const to = directions + from;
                        for (int64_t i = 0; i < numel; ++i) {
                          const float factor = row_factor * factors[i];
                          to[i] = values[i] * (factor < most ? factor : most);
                        }
                      });
}

template <class V>
constexpr FactoredKernels factored_kernels() {
  return {largest_of<V>, squares_of<V>, directions_of<V>};
}

}  // namespace
}  // namespace zero::kernels

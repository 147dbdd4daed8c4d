#pragma once
// Passes over a matrix's gradient for rules that keep means over its rows and columns (optim/adafactor.h),
// for a vector type V as passes.h. Loops are plain: what they do to an element depends on nothing else, and
// sums are of whole numbers below 2^53, so that any order gives the same bits.

#include <cfloat>

#include "optim/kernels/exact_sum.h"
#include "optim/kernels/passes.h"

namespace zero::kernels {
namespace {

constexpr int64_t kFactoredRun = 256;

template <Element kType>
const void* address_of(const void* values, int64_t i) {
  return static_cast<const char*>(values) + i * (kType == Element::f32 ? 4 : 2);
}

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
        // The next run is on its way while this one is computed with.
        for (int64_t i = 0; i < whole; i += V::kWidth)
          __builtin_prefetch(address_of<kType>(run.gradient, from + kFactoredRun + i));
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

/// Adds floor(value^2 * scale) for values of a row: to the sums of their columns, and to lanes of the row's,
/// value i to lane i % kLanes. Scales are powers of two, so nothing else is rounded. V::add_whole_squares, if
/// there is one, does so for a multiple of kLanes of them.
template <class V>
void add_whole_squares(const float* values, int64_t numel, double row_scale, const double* scales,
                       double* sums, double* lanes) {
  int64_t begin = 0;
  if constexpr (requires { V::add_whole_squares(values, numel, row_scale, scales, sums, lanes); }) {
    begin = numel - numel % kLanes;
    V::add_whole_squares(values, begin, row_scale, scales, sums, lanes);
  }
  for (; begin < numel; begin += kLanes) {
    const int64_t count = std::min(kLanes, numel - begin);
    for (int64_t k = 0; k < count; ++k) {
      const double value = values[begin + k], square = value * value;
      sums[begin + k] += __builtin_floor(square * scales[begin + k]);
      lanes[k] += __builtin_floor(square * row_scale);
    }
  }
}

template <class V>
void squares_of(const MatrixRun& run, const double* row_scales, const double* column_scales, double* row_sums,
                double* column_sums) {
  for_each_row_run<V>(run, [&](int64_t row, int64_t column, const float* values, int64_t, int64_t numel) {
    double lanes[kLanes] = {};
    add_whole_squares<V>(values, numel, row_scales[row], column_scales + column, column_sums + column, lanes);
    row_sums[row] += sum_lanes(lanes);
  });
}

template <class W>
void set_directions(const float* values, int64_t begin, int64_t end, float row_factor, const float* factors,
                    float most, float* to) {
  for (int64_t i = begin; i < end; i += W::kWidth) {
    const auto factor = W::mul(W::set(row_factor), W::load(factors + i));
    W::store(to + i, W::mul(W::load(values + i), W::min(factor, W::set(most))));
  }
}

template <class V>
void directions_of(const MatrixRun& run, const float* row_factors, const float* column_factors, float most,
                   float* directions) {
  for_each_row_run<V>(
      run, [&](int64_t row, int64_t column, const float* values, int64_t from, int64_t numel) {
        const int64_t whole = numel - numel % V::kWidth;
        const float* const factors = column_factors + column;
        set_directions<V>(values, 0, whole, row_factors[row], factors, most, directions + from);
        set_directions<Scalar>(values, whole, numel, row_factors[row], factors, most, directions + from);
      });
}

inline void add_signed_exactly(double value, double* digits) {
  if (value >= 0) return add_exactly(value, digits);
  double less[kDigits] = {};
  add_exactly(-value, less);
  for (int i = 0; i < kDigits; ++i) digits[i] -= less[i];
}

/// x + shifter - shifter is x in multiples of 2^(e - 49), for x below 2^(e + 1): bound's exponent is e.
inline double shifter_of(double bound) {
  return __builtin_bit_cast(
      double, ((__builtin_bit_cast(uint64_t, bound) >> 52) + 3) << 52 | uint64_t{1} << 51);  // 1.5 2^(e + 3)
}

/// Adds `count` values of any size and sign. In each round multiples of a unit add up exactly in fp64; what
/// is left goes on, until nothing is.
inline void add_rests_exactly(double* rests, int64_t count, double* digits) {
  for (;;) {
    double bound = 0, sum = 0;
    for (int64_t i = 0; i < count; ++i) bound += __builtin_fabs(rests[i]);
    if (bound == 0) return;
    if (!(bound <= DBL_MAX)) return add_exactly(bound, digits);
    const double shifter = shifter_of(bound);
    for (int64_t i = 0; i < count; ++i) {
      const double whole = (rests[i] + shifter) - shifter;
      sum += whole;
      rests[i] -= whole;
    }
    add_signed_exactly(sum, digits);
  }
}

constexpr int64_t kExactRun = 1024;
#ifdef __AVX512F__
constexpr int64_t kRegisterDoubles = 8;
#else
constexpr int64_t kRegisterDoubles = 4;
#endif

template <class T, int64_t kCount>
struct Vector {
  static constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(T));
  using type [[gnu::vector_size(kBytes)]] = T;
};

/// Squares of kExactRun values: two rounds of the above at once, which are enough unless some are beyond
/// 2^-16 of the others. False, and nothing is added, where they are not.
template <class V>
bool add_run_exactly(const float* values, double* digits) {
  constexpr int64_t kWide = V::kWidth == 1 ? 2 : kRegisterDoubles, kVectors = 2;
  using Wide = typename Vector<double, kWide>::type;
  using Narrow = typename Vector<float, kWide>::type;
  using Bits = typename Vector<int64_t, kWide>::type;
  const auto square = [&](int64_t i, Wide& to) {
    Narrow narrow;
    __builtin_memcpy(&narrow, values + i, sizeof narrow);
    const Wide wide = __builtin_convertvector(narrow, Wide);
    to = wide * wide;
  };
  const auto total = [](const Wide* lanes) {
    double sum = 0;
    for (int64_t vector = 0; vector < kVectors; ++vector)
      for (int64_t k = 0; k < kWide; ++k) sum += lanes[vector][k];
    return sum;
  };
  Wide bounds[kVectors] = {}, first[kVectors] = {}, second[kVectors] = {};
  Bits left = {};
  for (int64_t i = 0; i < kExactRun; i += kVectors * kWide)
    for (int64_t vector = 0; vector < kVectors; ++vector) {
      Wide one;
      square(i + vector * kWide, one);
      bounds[vector] += one;
    }
  const double bound = total(bounds);
  if (bound == 0) return true;
  if (!(bound <= DBL_MAX)) return false;
  // What the first round leaves is at most half its unit each.
  const double shifter = shifter_of(bound), next = shifter * 0x1p-42;
  for (int64_t i = 0; i < kExactRun; i += kVectors * kWide)
    for (int64_t vector = 0; vector < kVectors; ++vector) {
      Wide rest;
      square(i + vector * kWide, rest);
      Wide whole = (rest + shifter) - shifter;
      first[vector] += whole;
      rest -= whole;
      whole = (rest + next) - next;
      second[vector] += whole;
      rest -= whole;
      left |= __builtin_bit_cast(Bits, rest);
    }
  for (int64_t k = 0; k < kWide; ++k)
    if (left[k] != 0) return false;
  add_signed_exactly(total(first), digits);
  add_signed_exactly(total(second), digits);
  return true;
}

template <class V>
void squares_exactly(const float* values, int64_t count, double* digits) {
  for (int64_t from = 0; from < count; from += kExactRun) {
    const int64_t numel = std::min(kExactRun, count - from);
    if (numel == kExactRun && add_run_exactly<V>(values + from, digits)) continue;
    double squares[kExactRun];
    for (int64_t i = 0; i < numel; ++i) {
      const double value = values[from + i];
      squares[i] = value * value;
    }
    add_rests_exactly(squares, numel, digits);
  }
  carry_digits(digits);
}

template <class V>
constexpr FactoredKernels factored_kernels() {
  return {largest_of<V>, squares_of<V>, directions_of<V>, squares_exactly<V>};
}

}  // namespace
}  // namespace zero::kernels

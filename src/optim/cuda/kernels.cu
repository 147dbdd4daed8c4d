// The reference's own functions (passes.h over Scalar), an element or a lane of sums a thread. Compiled with
// -fmad=false: the bits are the CPU's.

#include <variant>

#include "optim/cuda/launch.h"
#include "optim/kernels/passes.h"
#include "optim/kernels/scalar_rows.h"

namespace zero::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostGrid = 1 << 20;  // beyond, a thread takes several elements

unsigned grid_of(int64_t count) {
  const int64_t grid = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(grid < kMostGrid ? grid : kMostGrid);
}

template <class Rule, Element kGradient, class Weights, int kStates, Phase kPhase>
__global__ void update_elements(Buffers buffers, const ScalarRow<Rule>* row, int64_t count) {
  if (row->is_active == 0) return;
  const auto scalars = row->scalars;
  NoSums none;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    run_elements<Scalar, Rule, kGradient, Weights, kStates, kPhase>(buffers, scalars, i, i + 1, none);
}

// The lanes of several blocks of elements side by side; lane l adds elements l, l + kLanes, ... in order.
constexpr int kBlocksAtATime = kThreads / kLanes;

struct OneLane {
  double* values;    // a number for every sum
  int64_t lane = 0;  // passes.h says which it is; here it is the thread's
  ZERO_ANY_DEVICE void add_square(int sum, float value) { values[sum] += double{value} * double{value}; }
};

template <int kSums>
__device__ void store_lanes(double (&lanes)[kBlocksAtATime][kSums][kLanes], int64_t block, int64_t blocks,
                            double* sums) {
  __syncthreads();
  if (threadIdx.x != 0 || block >= blocks) return;
  for (int k = 0; k < kSums; ++k) sums[block * kSums + k] = sum_lanes(lanes[threadIdx.y][k]);
}

template <class Rule, Element kGradient, class Weights>
__global__ void direction_blocks(Buffers buffers, const ScalarRow<Rule>* row, int64_t count,
                                 int64_t block_numel, double* sums) {
  __shared__ double lanes[kBlocksAtATime][Rule::kSums][kLanes];
  const int64_t block = int64_t{blockIdx.x} * kBlocksAtATime + threadIdx.y;
  const int64_t blocks = (count + block_numel - 1) / block_numel;
  const int64_t begin = block * block_numel;
  const int64_t end = begin + block_numel < count ? begin + block_numel : count;
  double own[Rule::kSums] = {};
  OneLane lane{own};
  const auto scalars = row->scalars;
  const int64_t stop = row->is_active != 0 ? end : begin;  // sums of 0
  for (int64_t i = begin + threadIdx.x; i < stop; i += kLanes)
    run_elements<Scalar, Rule, kGradient, Weights, kSumsStates<Rule>, kSumsPhase<Rule>>(buffers, scalars, i,
                                                                                        i + 1, lane);
  for (int k = 0; k < Rule::kSums; ++k) lanes[threadIdx.y][k][threadIdx.x] = own[k];
  store_lanes(lanes, block, blocks, sums);
}

template <Element kType>
__global__ void square_blocks(const void* values, int64_t count, int64_t block_numel, double* sums) {
  __shared__ double lanes[kBlocksAtATime][1][kLanes];
  const int64_t block = int64_t{blockIdx.x} * kBlocksAtATime + threadIdx.y;
  const int64_t blocks = (count + block_numel - 1) / block_numel;
  const int64_t begin = block * block_numel;
  const int64_t end = begin + block_numel < count ? begin + block_numel : count;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kLanes) {
    const double value = load_as<Scalar, kType>(values, i);
    sum += value * value;
  }
  lanes[threadIdx.y][0][threadIdx.x] = sum;
  store_lanes(lanes, block, blocks, sums);
}

dim3 lanes_of_blocks() { return {kLanes, kBlocksAtATime}; }
unsigned grid_of_blocks(int64_t count, int64_t block) {
  const int64_t elements = block * kBlocksAtATime;
  return static_cast<unsigned>((count + elements - 1) / elements);
}

// A thread for each piece and sum: pieces are units' and few.
__global__ void total_pieces(const double* partials, int64_t sums, const int64_t* ends, int64_t pieces,
                             double* totals) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= pieces * sums) return;
  const int64_t piece = at / sums, sum = at % sums;
  totals[at] = ordered_total(partials + sum, piece == 0 ? 0 : ends[piece - 1], ends[piece], sums);
}

__global__ void total_pieces_exactly(const double* partials, int64_t sums, const int64_t* ends,
                                     int64_t pieces, double* digits) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= pieces * sums) return;
  const int64_t piece = at / sums, sum = at % sums;
  exact_total(partials + sum, piece == 0 ? 0 : ends[piece - 1], ends[piece], sums, digits + at * kDigits);
}

template <class Rule>
__device__ ScalarRow<Rule>& row_at(char* table, int64_t row) {
  return *reinterpret_cast<ScalarRow<Rule>*>(table + row * kScalarRowBytes);
}

template <class Rule>
__global__ void decide_rows(char* table, const int64_t* parameters, int64_t rows, const double* squared_norm,
                            const double* used, double gradient_scale, double max_norm) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row < rows)
    decide(row_at<Rule>(table, row), {*squared_norm, gradient_scale, max_norm}, used[parameters[row]]);
}

template <class Rule>
__global__ void apply_sums_to_rows(char* table, const int64_t* parameters, int64_t rows, const double* sums) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  apply_digits(row_at<Rule>(table, row), sums + parameters[row] * Rule::kSums * kDigits);
}

/// Calls f with the arithmetic of the rule at `place`; false where there is none, or f says so.
template <class F, class... Rules>
bool with_rule(int64_t place, F f, const std::variant<Rules...>*) {
  int64_t at = 0;
  return ((at++ == place && f(Arithmetic<Rules>{})) || ...);
}

template <class Rule>
void launch_update(const Buffers& buffers, const ScalarRow<Rule>* row, int64_t count, cudaStream_t stream) {
  constexpr Phase kPhase = kUpdatePhase<Rule>;
  with_gradient(buffers, [&](auto gradient) {
    with_master(buffers, [&](auto weights) {
      with_states<Rule>(buffers, [&](auto states) {
        update_elements<Rule, decltype(gradient)::value, decltype(weights), decltype(states)::value, kPhase>
            <<<grid_of(count), kThreads, 0, stream>>>(buffers, row, count);
      });
    });
  });
}

template <class Rule>
void launch_direction(Buffers buffers, const ScalarRow<Rule>* row, int64_t count, int64_t block, double* sums,
                      cudaStream_t stream) {
  if (!buffers.remainder) buffers.parameter_type = Element::none;
  const unsigned grid = grid_of_blocks(count, block);
  with_gradient(buffers, [&](auto gradient) {
    const auto run = [&](auto weights) {
      direction_blocks<Rule, decltype(gradient)::value, decltype(weights)>
          <<<grid, lanes_of_blocks(), 0, stream>>>(buffers, row, count, block, sums);
    };
    if (buffers.remainder) return run(Master<Element::bf16, true>{});
    run(Master<Element::none, false>{});
  });
}

constexpr const OptimizerRule* kRules = nullptr;

}  // namespace

cudaError_t update(int64_t rule, const Buffers& buffers, const void* row, int64_t count,
                   cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto launch = [&](auto arithmetic) {
    using Rule = decltype(arithmetic);
    launch_update<Rule>(buffers, static_cast<const ScalarRow<Rule>*>(row), count, stream);
    return true;
  };
  return with_rule(rule, launch, kRules) ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t direction(int64_t rule, const Buffers& buffers, const void* row, int64_t count, int64_t block,
                      double* sums, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto launch = [&](auto arithmetic) {
    using Rule = decltype(arithmetic);
    if constexpr (Rule::kSums > 0)
      launch_direction<Rule>(buffers, static_cast<const ScalarRow<Rule>*>(row), count, block, sums, stream);
    return Rule::kSums > 0;
  };
  return with_rule(rule, launch, kRules) ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t ordered_totals(const double* partials, int64_t sums, const int64_t* ends, int64_t pieces,
                           double* totals, cudaStream_t stream) {
  if (pieces * sums == 0) return cudaSuccess;
  total_pieces<<<grid_of(pieces * sums), kThreads, 0, stream>>>(partials, sums, ends, pieces, totals);
  return cudaGetLastError();
}

cudaError_t exact_totals(const double* partials, int64_t sums, const int64_t* ends, int64_t pieces,
                         double* digits, cudaStream_t stream) {
  if (pieces * sums == 0) return cudaSuccess;
  total_pieces_exactly<<<grid_of(pieces * sums), kThreads, 0, stream>>>(partials, sums, ends, pieces, digits);
  return cudaGetLastError();
}

cudaError_t decide(int64_t rule, const RowsOnDevice& rows, const double* squared_norm, const double* used,
                   double gradient_scale, double max_norm, cudaStream_t stream) {
  if (rows.count == 0) return cudaSuccess;
  const auto launch = [&](auto arithmetic) {
    decide_rows<decltype(arithmetic)><<<grid_of(rows.count), kThreads, 0, stream>>>(
        static_cast<char*>(rows.table), rows.parameters, rows.count, squared_norm, used, gradient_scale,
        max_norm);
    return true;
  };
  return with_rule(rule, launch, kRules) ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t apply_sums(int64_t rule, const RowsOnDevice& rows, const double* sums, cudaStream_t stream) {
  if (rows.count == 0) return cudaSuccess;
  const auto launch = [&](auto arithmetic) {
    using Rule = decltype(arithmetic);
    if constexpr (Rule::kSums > 0)
      apply_sums_to_rows<Rule><<<grid_of(rows.count), kThreads, 0, stream>>>(
          static_cast<char*>(rows.table), rows.parameters, rows.count, sums);
    return Rule::kSums > 0;
  };
  return with_rule(rule, launch, kRules) ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t sums_of_squares(const void* values, Element type, int64_t count, int64_t block, double* sums,
                            cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  with_element(type, [&](auto element) {
    constexpr Element kType = decltype(element)::value;
    if constexpr (kType != Element::none)
      square_blocks<kType>
          <<<grid_of_blocks(count, block), lanes_of_blocks(), 0, stream>>>(values, count, block, sums);
  });
  return cudaGetLastError();
}

}  // namespace zero::kernels::cuda

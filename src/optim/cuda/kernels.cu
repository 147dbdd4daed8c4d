// The reference's own functions (passes.h over Scalar), an element or a lane of sums a thread. Compiled with
// -fmad=false: the bits are the CPU's.

#include <cstring>
#include <variant>

#include "optim/cuda/launch.h"
#include "optim/kernels/passes.h"

namespace zero::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostGrid = 1 << 20;  // beyond, a thread takes several elements

unsigned grid_of(int64_t count) {
  const int64_t grid = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(grid < kMostGrid ? grid : kMostGrid);
}

template <class Rule, Element kGradient, class Weights, int kStates, Phase kPhase>
__global__ void update_elements(Buffers buffers, typename Rule::Scalars scalars, int64_t count) {
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

template <class Rule, Element kGradient, class Weights, int kStates>
__global__ void direction_blocks(Buffers buffers, typename Rule::Scalars scalars, int64_t count,
                                 int64_t block_numel, double* sums) {
  __shared__ double lanes[kBlocksAtATime][Rule::kSums][kLanes];
  const int64_t block = int64_t{blockIdx.x} * kBlocksAtATime + threadIdx.y;
  const int64_t blocks = (count + block_numel - 1) / block_numel;
  const int64_t begin = block * block_numel;
  const int64_t end = begin + block_numel < count ? begin + block_numel : count;
  double own[Rule::kSums] = {};
  OneLane lane{own};
  for (int64_t i = begin + threadIdx.x; i < end; i += kLanes)
    run_elements<Scalar, Rule, kGradient, Weights, kStates, Phase::direction>(buffers, scalars, i, i + 1,
                                                                              lane);
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

template <class Scalars>
bool read(std::string_view bytes, Scalars& scalars) {
  if (bytes.size() != sizeof scalars) return false;
  std::memcpy(&scalars, bytes.data(), sizeof scalars);
  return true;
}

/// Calls f with the arithmetic of the rule at `place` and its scalars; false where they do not fit.
template <class F, class... Rules>
bool with_rule(int64_t place, std::string_view bytes, F f, const std::variant<Rules...>*) {
  const auto call = [&](auto arithmetic) {
    typename decltype(arithmetic)::Scalars scalars;
    return read(bytes, scalars) && f(arithmetic, scalars);
  };
  int64_t at = 0;
  return ((at++ == place && call(Arithmetic<Rules>{})) || ...);
}

template <class Rule>
void launch_update(const Buffers& buffers, const typename Rule::Scalars& scalars, int64_t count,
                   cudaStream_t stream) {
  constexpr Phase kPhase = Rule::kSums > 0 ? Phase::update : Phase::fused;
  with_gradient(buffers, [&](auto gradient) {
    with_master(buffers, [&](auto weights) {
      with_states<Rule>(buffers, [&](auto states) {
        update_elements<Rule, decltype(gradient)::value, decltype(weights), decltype(states)::value, kPhase>
            <<<grid_of(count), kThreads, 0, stream>>>(buffers, scalars, count);
      });
    });
  });
}

template <class Rule>
void launch_direction(Buffers buffers, const typename Rule::Scalars& scalars, int64_t count, int64_t block,
                      double* sums, cudaStream_t stream) {
  if (!buffers.remainder) buffers.parameter_type = Element::none;
  const unsigned grid = grid_of_blocks(count, block);
  with_gradient(buffers, [&](auto gradient) {
    const auto run = [&](auto weights) {
      direction_blocks<Rule, decltype(gradient)::value, decltype(weights), Rule::kMostStates>
          <<<grid, lanes_of_blocks(), 0, stream>>>(buffers, scalars, count, block, sums);
    };
    if (buffers.remainder) return run(Master<Element::bf16, true>{});
    run(Master<Element::none, false>{});
  });
}

constexpr const OptimizerRule* kRules = nullptr;

}  // namespace

cudaError_t update(int64_t rule, const Buffers& buffers, std::string_view scalars, int64_t count,
                   cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto launch = [&](auto arithmetic, const auto& values) {
    launch_update<decltype(arithmetic)>(buffers, values, count, stream);
    return true;
  };
  return with_rule(rule, scalars, launch, kRules) ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t direction(int64_t rule, const Buffers& buffers, std::string_view scalars, int64_t count,
                      int64_t block, double* sums, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto launch = [&](auto arithmetic, const auto& values) {
    using Rule = decltype(arithmetic);
    if constexpr (Rule::kSums > 0) launch_direction<Rule>(buffers, values, count, block, sums, stream);
    return Rule::kSums > 0;
  };
  return with_rule(rule, scalars, launch, kRules) ? cudaGetLastError() : cudaErrorInvalidValue;
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

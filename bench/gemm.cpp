// LibTorch's rate, and ours, for the matrix products of GPT-2 124M's forward and backward, at one micro-batch
// of 256 tokens, all ranks at once, and the processor's own limit: a line of JSON a dtype. FLOPs are counted
// as 2 m n k. Run by flops.py under `zero launch`.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/processor.h"
#include "units.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/cpu_operators.h"
#include "zero/gpt2_shape.h"
#include "zero/mesh.h"

namespace zero::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 256;
constexpr int kMostRounds = 7;
constexpr double kSecondsOfRounds = 5;  // where LibTorch takes minutes, a round is enough

/// One linear layer of the model and how often it is there.
struct Layer {
  int64_t in, out, count;
};

std::vector<Layer> layers_of(const Gpt2Shape& shape) {
  const int64_t d = shape.width, n = shape.layers;
  return {{d, 3 * d, n}, {d, d, n}, {d, 4 * d, n}, {4 * d, d, n}, {d, shape.vocab_size, 1}};
}

/// As many as fit into some seconds, the same on all ranks.
int rounds_of(double seconds_of_one, const Group& all) {
  at::Tensor slowest = at::full({1}, seconds_of_one, at::kDouble);
  all.all_reduce(slowest, Group::Reduce::Max, "rounds").wait();
  return static_cast<int>(std::clamp(kSecondsOfRounds / slowest.item<double>(), 1.0, 1.0 * kMostRounds));
}

/// Median seconds of all products of all layers like this, forward and backward. Each has weights of its own,
/// which come from memory as they do in a step.
double seconds_of(const Layer& layer, at::ScalarType dtype, const Group& all) {
  const auto options = at::TensorOptions(dtype);
  const at::Tensor x = at::randn({kTokens, layer.in}).to(options),
                   g = at::randn({kTokens, layer.out}).to(options);
  std::vector<at::Tensor> weights;
  for (int64_t i = 0; i < layer.count; ++i) weights.push_back(at::randn({layer.out, layer.in}).to(options));
  std::vector<double> times;
  int rounds = kMostRounds;
  for (int round = 0; round <= rounds; ++round) {
    all.barrier("products");
    const auto began = Clock::now();
    for (const at::Tensor& weight : weights) at::mm(x, weight.t());
    for (const at::Tensor& weight : weights) {
      at::mm(g, weight);
      at::mm(g.t(), x);
    }
    times.push_back(std::chrono::duration<double>(Clock::now() - began).count());
    if (round == 0) rounds = rounds_of(times[0], all);
  }
  std::sort(times.begin() + 1, times.end());  // the first prepares the kernels
  return times[static_cast<size_t>(1 + rounds / 2)];
}

/// Of rank 0's units (bf16 is multiplied as fp32 where there are no tiles), while those of all ranks are
/// busy; the median of the moments before and after each layer.
class UnitRate {
 public:
  explicit UnitRate(at::ScalarType dtype, const Group& all) : half_(dtype == at::kBFloat16), all_(all) {}

  void take() {
    if (half_ && multiplies_bf16() && !runs_amx()) return;  // LibTorch's, by instructions of their own
    const bool tiles = half_ && runs_amx();                 // asks the kernel for permission, too
    all_.barrier("units");
    const std::optional<double> rate = tiles ? bf16_unit_gflops(kSeconds) : fp32_unit_gflops(kSeconds);
    if (rate) rates_.push_back(*rate);
  }

  std::optional<double> median() {
    if (rates_.empty()) return std::nullopt;
    std::sort(rates_.begin(), rates_.end());
    return rates_[rates_.size() / 2];
  }

 private:
  static constexpr double kSeconds = 0.1;
  bool half_;
  const Group& all_;
  std::vector<double> rates_;
};

void report(at::ScalarType dtype, const Group& all) {
  const Gpt2Shape shape = gpt2_shape("gpt2");
  double seconds = 0, our_seconds = 0, flops = 0;
  UnitRate units(dtype, all);
  units.take();
  for (const Layer& layer : layers_of(shape)) {
    seconds += seconds_of(layer, dtype, all);
    const CpuOperators fast;
    our_seconds += seconds_of(layer, dtype, all);
    units.take();
    flops += 3.0 * 2 * kTokens * static_cast<double>(layer.in * layer.out * layer.count);
  }
  const double attention = 3.0 * 4 * kTokens * kTokens * static_cast<double>(shape.width * shape.layers);
  if (all.rank() != 0) return;
  nlohmann::ordered_json row = {{"dtype", dtype == at::kFloat ? "fp32" : "bf16"},
                                {"ranks", all.size()},
                                {"threads", at::get_num_threads()},
                                {"gemm_flops", flops},
                                {"attention_flops", attention},
                                {"gemm_s", seconds},
                                {"gemm_gflops_per_s", flops / seconds / 1e9},
                                {"our_gemm_gflops_per_s", flops / our_seconds / 1e9}};
  if (const std::optional<double> rate = units.median()) row["unit_gflops_per_s"] = *rate;
  std::cout << row.dump() << std::endl;
}

}  // namespace
}  // namespace zero::bench

int main() {
  const zero::Rendezvous job = zero::rendezvous_from_environment();
  zero::prepare_compute_threads(1);
  zero::use_training_allocator();
  const zero::Mesh mesh = zero::Mesh::join(job, {});
  const at::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) zero::bench::report(dtype, mesh.world());
}

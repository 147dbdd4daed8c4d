#pragma once
// A matrix and a vector cut over ranks that are threads of this process, each with an optimizer of its own:
// what a rule makes of them must not depend on how many there are.

#include <ATen/ATen.h>

#include <algorithm>
#include <barrier>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "optim/shard_optimizer.h"

namespace zero::testing {

/// Sums of all ranks, the same for each.
class SumOfThreads {
 public:
  explicit SumOfThreads(int ranks) : barrier_(ranks) {}
  void add_up(std::span<double> own) {
    {
      const std::lock_guard lock(adding_);
      sums_.resize(own.size());
      for (size_t i = 0; i < own.size(); ++i) sums_[i] += own[i];
    }
    barrier_.arrive_and_wait();
    std::copy(sums_.begin(), sums_.end(), own.begin());
    barrier_.arrive_and_wait();
    {
      const std::lock_guard lock(adding_);
      sums_.clear();
    }
    barrier_.arrive_and_wait();
  }

 private:
  std::barrier<> barrier_;
  std::mutex adding_;
  std::vector<double> sums_;
};

/// Every thread's tensor, on each.
class TensorsOfThreads {
 public:
  explicit TensorsOfThreads(int ranks) : barrier_(ranks), tensors_(static_cast<size_t>(ranks)) {}
  std::vector<at::Tensor> gather(int rank, const at::Tensor& own) {
    tensors_[static_cast<size_t>(rank)] = own;
    barrier_.arrive_and_wait();
    std::vector<at::Tensor> all;
    for (const at::Tensor& one : tensors_) all.push_back(one.clone());
    barrier_.arrive_and_wait();
    return all;
  }

 private:
  std::barrier<> barrier_;
  std::vector<at::Tensor> tensors_;
};

/// Number `number` of values for `numel` elements: whole numbers over 2^15, as golden/optimizer_rules.py
/// draws them.
inline at::Tensor drawn(int64_t numel, int64_t number) {
  const at::Tensor values = at::empty({numel});
  auto* const to = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < numel; ++i)
    to[i] = static_cast<float>((i * 40503 + number * 30011 + i * i * 7) % 65536) / 32768 - 1;
  return values;
}

struct CutRun {
  at::Tensor matrix, vector;       // flat
  std::vector<at::Tensor> states;  // of the slab, by kind
  std::vector<at::Tensor> means;   // of rows, of columns and of the vector: Adafactor's
};

/// Steps of `rule` on drawn values and gradients; shards are cut at multiples of 256.
inline CutRun run_on_threads(const OptimizerRule& rule, int ranks, int steps, double gradient_scale = 1,
                             const std::vector<int64_t>& matrix_shape = {40, 50}) {
  struct Parameter {
    int64_t at, numel;
    int dims;
  };
  const int64_t matrix_numel = matrix_shape[0] * matrix_shape[1],
                vector_at = (matrix_numel + 255) / 256 * 256;
  const std::vector<Parameter> parameters{{0, matrix_numel, 2}, {vector_at, 37, 1}};
  const int64_t blocks = vector_at / 256 + 1, shard_numel = (blocks + ranks - 1) / ranks * 256;
  const at::Tensor slab = at::zeros({ranks * shard_numel});
  const auto fill = [&](const at::Tensor& into, int64_t number) {
    for (const Parameter& one : parameters) into.narrow(0, one.at, one.numel).copy_(drawn(one.numel, number));
  };
  fill(slab, 0);
  std::vector<std::vector<at::Tensor>> states(static_cast<size_t>(ranks));
  std::vector<at::Tensor> means;
  SumOfThreads sum(ranks);
  TensorsOfThreads tensors(ranks);
  const auto of_rank = [&](int rank) {
    at::NoGradGuard no_grad;
    StateStore store;
    const at::Tensor gradients = at::zeros_like(slab);
    store.adopt(0, kMasterState, slab.narrow(0, rank * shard_numel, shard_numel));
    store.adopt(0, kGradientState, gradients.narrow(0, rank * shard_numel, shard_numel));
    OptimizerShard shard;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& one = parameters[i];
      const int64_t begin = std::max(one.at, rank * shard_numel),
                    end = std::min(one.at + one.numel, (rank + 1) * shard_numel);
      if (begin >= end) continue;
      shard.segments.push_back({.name = "p" + std::to_string(i),
                                .parameter = static_cast<int>(i),
                                .begin = begin - rank * shard_numel,
                                .end = end - rank * shard_numel,
                                .parameter_begin = begin - one.at,
                                .counted_begin = begin - rank * shard_numel,
                                .counted_end = end - rank * shard_numel,
                                .summed_begin = begin - rank * shard_numel,
                                .summed_end = end - rank * shard_numel,
                                .dims = one.dims,
                                .is_matrix = one.dims == 2 && std::holds_alternative<Muon>(rule)});
    }
    if (std::holds_alternative<Muon>(rule))
      shard.matrices.push_back(
          {.parameter = 0, .offset = 0, .rows = matrix_shape[0], .cols = matrix_shape[1]});
    if (is_factored(rule)) shard.factored = {{0, "p0", matrix_shape}, {1, "p1", {37}}};
    const AxisReductions dp{
        .add_up = [&](std::span<double> own) { sum.add_up(own); },
        .largest =
            [&](std::span<double> own) {
              const auto numel = static_cast<int64_t>(own.size());
              const at::Tensor mine = at::from_blob(own.data(), {numel}, at::kDouble);
              mine.copy_(std::get<0>(at::stack(tensors.gather(rank, mine.clone())).max(0)));
            }};
    const ShardExchange exchange{
        .rank = rank,
        .ranks = ranks,
        .all_gather = [&](const at::Tensor& own) { return at::cat(tensors.gather(rank, own)); },
        .reduce_scatter =
            [&](const at::Tensor& slab) {
              at::Tensor own = at::zeros({shard_numel});
              for (const at::Tensor& one : tensors.gather(rank, slab))
                own.add_(one.narrow(0, rank * shard_numel, shard_numel));
              return own;
            }};
    const OptimizerSpec spec = std::visit([](const auto& one) { return OptimizerSpec(one); }, rule);
    const auto optimizer = make_shard_optimizer(spec, {}, store, {shard}, 2);
    const std::vector<char> used(2, 1);
    for (int step = 1; step <= steps; ++step) {
      fill(gradients, step);
      optimizer->step({.gradient_scale = gradient_scale,
                       .lr = rule_lr(rule),
                       .used = used,
                       .sum_over_ranks = [&](std::span<double> own) { sum.add_up(own); },
                       .exchange = ranks > 1 ? &exchange : nullptr,
                       .dp = ranks > 1 ? &dp : nullptr});
    }
    if (rank == 0)
      for (const char* kind : {"exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"})
        if (is_factored(rule))
          means.push_back(store.lend(0, {std::string_view(kind)}, StateStore::Use::Read)[kind].clone());
    for (const std::string& kind : optimizer->state_names())
      states[static_cast<size_t>(rank)].push_back(
          store.lend(0, {std::string_view(kind)}, StateStore::Use::Read)[kind].clone());
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(of_rank, rank);
  for (std::thread& thread : threads) thread.join();
  CutRun run{.matrix = slab.narrow(0, 0, matrix_numel),
             .vector = slab.narrow(0, vector_at, 37),
             .states = {},
             .means = means};
  for (size_t kind = 0; kind < states[0].size(); ++kind) {
    std::vector<at::Tensor> parts;
    for (const auto& of : states) parts.push_back(of[kind]);
    run.states.push_back(at::cat(parts).narrow(0, 0, vector_at + 37));
  }
  return run;
}

}  // namespace zero::testing

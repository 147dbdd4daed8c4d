#include "optim/muon.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "optim/kernel_passes.h"
#include "optim/rule_optimizer.h"
#include "optim/tensor_passes.h"

namespace zero {
namespace muon {

at::Tensor orthogonalised(const at::Tensor& matrix) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kLeastNorm = 1e-7;
  constexpr size_t kSteps = 5;
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (is_tall) x = x.t();
  x.div_(x.norm().clamp(kLeastNorm));
  // The same memory for every step: fresh pages cost as much as a tenth of the products.
  at::Tensor gram = at::empty({x.size(0), x.size(0)}, x.options()), update = at::empty_like(gram);
  std::array<at::Tensor, 2> made{at::empty(x.sizes(), x.options()), at::empty(x.sizes(), x.options())};
  for (size_t step = 0; step < kSteps; ++step) {
    at::mm_out(gram, x, x.t());
    at::addmm_out(update, gram, gram, gram, kB, kC);
    x = at::addmm_out(made[step % 2], x, update, x, kA);
  }
  return is_tall ? x.t() : x;
}

double rate_factor(const Muon& rule, int64_t rows, int64_t cols) {
  const auto a = static_cast<double>(rows), b = static_cast<double>(cols);
  return rule.match_rms_adamw ? 0.2 * std::sqrt(std::max(a, b)) : std::sqrt(std::max(1.0, a / b));
}

void share_out(std::vector<Task>& tasks, int ranks) {
  const auto work = [](const Task& task) {
    const auto a = static_cast<double>(std::min(task.matrix.rows, task.matrix.cols)),
               b = static_cast<double>(std::max(task.matrix.rows, task.matrix.cols));
    return 4 * a * a * b + 2 * a * a * a;
  };
  std::vector<size_t> order(tasks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return work(tasks[x]) > work(tasks[y]); });
  std::vector<double> load(static_cast<size_t>(ranks), 0);
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    tasks[i].owner = static_cast<int>(least - load.begin());
    *least += work(tasks[i]);
  }
}

}  // namespace muon

namespace {

// Units whose matrices are shared out and gathered together: two copies of so many elements in fp32.
constexpr int64_t kMostTogetherNumel = int64_t{16} << 20;

bool is_used(const StepInput& input, int parameter) {
  return input.used[static_cast<size_t>(parameter)] != 0;
}

}  // namespace

// New momentum, and what is to be made orthogonal, [shard_numel]: 0 outside this rank's parts of matrices.
at::Tensor RuleOptimizer::matrix_directions(const Muon& rule, const OptimizerShard& shard,
                                            const StepInput& input) const {
  const RuleMemory memory = borrow(whole_of(shard));
  at::Tensor directions = at::zeros({memory.gradient.numel()}, memory.gradient.options().dtype(at::kFloat));
  for (const ShardSegment& segment : shard.segments) {
    if (!segment.is_matrix || !is_used(input, segment.parameter)) continue;
    const at::Tensor gradient =
        piece(memory.gradient, segment).to(at::kFloat).mul(kernels::rounded(input.gradient_scale));
    const at::Tensor momentum = piece(memory.states[0], segment);
    momentum.lerp_(gradient, 1 - rule.momentum);
    piece(directions, segment).copy_(rule.nesterov ? gradient.lerp(momentum, rule.momentum) : momentum);
  }
  return directions;
}

void RuleOptimizer::move_matrices(const Muon& rule, const OptimizerShard& shard, const StepInput& input,
                                  const at::Tensor& directions) const {
  const RuleMemory memory = borrow(whole_of(shard));
  for (const ShardSegment& segment : shard.segments) {
    if (!segment.is_matrix || !is_used(input, segment.parameter)) continue;
    const auto matrix =
        std::find_if(shard.matrices.begin(), shard.matrices.end(),
                     [&](const SlabMatrix& one) { return one.parameter == segment.parameter; });
    const kernels::Rates rates = rates_of(segment, input);
    const at::Tensor master = tensor_passes::master_of(memory, segment.begin, segment.numel());
    const at::Tensor moved = master.mul(1 - rates.lr * rates.weight_decay)
                                 .add_(piece(directions, segment),
                                       -rates.lr * muon::rate_factor(rule, matrix->rows, matrix->cols));
    if (kernel_passes::is_rounded(memory))
      kernel_passes::set_rounded(memory, segment, moved, rounding_key(segment));
    else
      tensor_passes::set_master(memory, segment.begin, moved);
  }
}

void RuleOptimizer::step_matrices(const Muon& rule, const StepInput& input) const {
  const int ranks = input.exchange ? input.exchange->ranks : 1,
            rank = input.exchange ? input.exchange->rank : 0;
  for (size_t first = 0; first < shards_.size();) {
    // The next units, as many as are stepped together.
    std::vector<const OptimizerShard*> units;
    std::vector<muon::Task> tasks;
    std::vector<at::Tensor> wholes;
    int64_t numel = 0;
    for (; first < shards_.size() && (numel == 0 || numel < kMostTogetherNumel); ++first) {
      const OptimizerShard& shard = shards_[first];
      const auto here = [&](const SlabMatrix& one) { return is_used(input, one.parameter); };
      if (std::none_of(shard.matrices.begin(), shard.matrices.end(), here)) continue;
      for (const SlabMatrix& matrix : shard.matrices)
        if (here(matrix)) tasks.push_back({.unit = static_cast<int>(units.size()), .matrix = matrix});
      units.push_back(&shard);
      const at::Tensor own = matrix_directions(rule, shard, input);
      wholes.push_back(input.exchange ? input.exchange->all_gather(own) : own);
      numel += wholes.back().numel();
    }
    muon::share_out(tasks, ranks);
    std::vector<at::Tensor> made;
    for (const at::Tensor& whole : wholes) made.push_back(at::zeros_like(whole));
    for (const muon::Task& task : tasks) {
      if (task.owner != rank) continue;
      const auto matrix_in = [&](const at::Tensor& slab) {
        return slab.narrow(0, task.matrix.offset, task.matrix.rows * task.matrix.cols)
            .view({task.matrix.rows, task.matrix.cols});
      };
      const auto unit = static_cast<size_t>(task.unit);
      matrix_in(made[unit]).copy_(muon::orthogonalised(matrix_in(wholes[unit])));
    }
    for (size_t unit = 0; unit < units.size(); ++unit) {
      const at::Tensor own = input.exchange ? input.exchange->reduce_scatter(made[unit]) : made[unit];
      move_matrices(rule, *units[unit], input, own);
    }
  }
}

}  // namespace zero

#include "plan/stage_balance.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "plan/model_parts.h"
#include "zero/error.h"
#include "zero/model_shape.h"

namespace zero {
namespace {

/// How good the best cut of the first blocks into some stages is.
struct Best {
  double heaviest = std::numeric_limits<double>::infinity(), squares = 0;
  size_t begin = 0;  // of the last stage
  bool operator<(const Best& other) const {
    return heaviest != other.heaviest ? heaviest < other.heaviest : squares < other.squares;
  }
};

double numel_of_parameter(const ParameterSpec& parameter) {
  double numel = 1;
  for (const int64_t size : parameter.shape) numel *= static_cast<double>(size);
  return numel;
}

/// Elements of all parameters, or of matrices only: those are what products read.
double numel_below(const ModuleSpec& module, bool matrices_only) {
  double numel = 0;
  for (const ParameterSpec& parameter : module.parameters)
    if (!matrices_only || parameter.shape.size() == 2) numel += numel_of_parameter(parameter);
  for (const ModuleSpec& child : module.children) numel += numel_below(child, matrices_only);
  return numel;
}

}  // namespace

int stages_of_pipeline(const ParallelConfig& parallel) {
  if (parallel.pipeline == 1) return 1;
  if (parallel.schedule == "interleaved") return parallel.pipeline * parallel.chunks;
  return parallel.schedule == "zb-v" ? 2 * parallel.pipeline : parallel.pipeline;
}

std::vector<int64_t> balance_stages(const PartWeights& weights, int stages) {
  require(stages >= 1, ErrorKind::Config, "pipeline", "expected at least 1 stage");
  const size_t blocks = weights.blocks.size();
  std::vector<double> sums(blocks + 1, 0);
  std::partial_sum(weights.blocks.begin(), weights.blocks.end(), sums.begin() + 1);
  // best[s][n]: of the first n blocks in s + 1 stages.
  std::vector<std::vector<Best>> best(static_cast<size_t>(stages), std::vector<Best>(blocks + 1));
  for (int s = 0; s < stages; ++s)
    for (size_t end = 0; end <= blocks; ++end)
      for (size_t begin = 0; begin <= end; ++begin) {
        if (s == 0 && begin > 0) break;
        double weight = sums[end] - sums[begin];
        if (s == 0) weight += weights.first;
        if (s + 1 == stages) weight += weights.last;
        const Best before = s == 0 ? Best{.heaviest = 0} : best[static_cast<size_t>(s - 1)][begin];
        const Best candidate{std::max(before.heaviest, weight), before.squares + weight * weight, begin};
        Best& held = best[static_cast<size_t>(s)][end];
        if (candidate < held) held = candidate;
      }
  std::vector<int64_t> counts(static_cast<size_t>(stages));
  size_t end = blocks;
  for (int s = stages; s-- > 0;) {
    const size_t begin = best[static_cast<size_t>(s)][end].begin;
    counts[static_cast<size_t>(s)] = static_cast<int64_t>(end - begin);
    end = begin;
  }
  return counts;
}

PartWeights weights_of(const Config& config, const ModuleSpec& model) {
  using Balance = ParallelConfig::Balance;
  const Balance balance = config.parallel.balance;
  const ModelParts parts = parts_of_model(model);
  const auto width = static_cast<double>(config.model.width);
  const auto sequence = static_cast<double>(config.data.sequence_length);
  PartWeights weights;
  for (const ModuleSpec* block : parts.each_block) {
    if (balance == Balance::Uniform)
      weights.blocks.push_back(1);
    else if (balance == Balance::Parameters)
      weights.blocks.push_back(numel_below(*block, false));
    else  // of a token: two operations an element of a matrix, and those of scores and mixing
      weights.blocks.push_back(2 * numel_below(*block, true) + 4 * sequence * width);
  }
  if (balance == Balance::Cost)
    weights.last = 2 * static_cast<double>(vocab_size_of(shape_of(config))) * width;
  if (balance != Balance::Parameters) return weights;
  for (const ParameterSpec* parameter : parts.first) weights.first += numel_of_parameter(*parameter);
  for (const ParameterSpec* parameter : parts.last) weights.last += numel_of_parameter(*parameter);
  return weights;
}

std::vector<int64_t> stage_blocks_of(const Config& config, const ModuleSpec& model, int stages) {
  const PartWeights weights = weights_of(config, model);
  const std::vector<int64_t>& by_hand = config.parallel.stage_blocks;
  if (by_hand.empty()) return balance_stages(weights, stages);
  const int64_t total = std::accumulate(by_hand.begin(), by_hand.end(), int64_t{0});
  require(std::ssize(by_hand) == stages && total == std::ssize(weights.blocks), ErrorKind::Config,
          config.place("parallel.stage_blocks"),
          "parallel.stage_blocks: expected " + std::to_string(stages) +
              " numbers that add up to the model's " + std::to_string(weights.blocks.size()) +
              " blocks, got " + std::to_string(by_hand.size()) + " that add up to " + std::to_string(total));
  return by_hand;
}

}  // namespace zero

#pragma once
// How many blocks of a model each stage of a pipeline gets. Numbers only.

#include <cstdint>
#include <vector>

#include "zero/config.h"
#include "zero/plan.h"

namespace zero {

/// What the parts of a language model weigh, in any unit.
struct PartWeights {
  double first = 0, last = 0;  // what stands before the blocks, and behind them
  std::vector<double> blocks;
};

/// Blocks of each of `stages` neighbouring parts of which the first has `first` and the last `last` beside
/// its blocks: the heaviest as light as can be; of these the one whose squares add up to the least, then the
/// one with more blocks in later stages. Stages may get none. Throws Config for fewer than one stage.
std::vector<int64_t> balance_stages(const PartWeights& weights, int stages);

/// By parallel.balance, of a configured model with this tree: cost counts the operations of a sample's
/// forward (backward takes twice as many everywhere), with the head's and attention's; parameters all
/// parameters, a tied embedding at both ends; uniform blocks alone.
PartWeights weights_of(const Config& config, const ModuleSpec& model);

/// parallel.stage_blocks where it is given, else balance_stages(). `stages`: of the pipeline. Throws Config
/// where the list does not fit.
std::vector<int64_t> stage_blocks_of(const Config& config, const ModuleSpec& model, int stages);

/// Stages of the configured pipeline: its ranks, times the chunks of the schedule.
int stages_of_pipeline(const ParallelConfig& parallel);

}  // namespace zero

#pragma once
// Schedules found for given costs under a limit of memory.

#include "pipeline/table.h"
#include "pipeline/weaver.h"

namespace zero::pipeline {

struct SearchOptions {
  StageCosts costs;
  // A rank may keep the activations of this many micro-batches; 0: as many as there are ranks, which is what
  // 1F1B's first rank keeps.
  double kept_micro_batches = 0;
};

/// One stage a rank: a template (some forwards, then backward and forward in turn, gradients of weights where
/// a rank would wait or its memory is full) is played with many settings, and the one of the smallest cost is
/// kept. For the costs and twice 1F1B's memory of Qi et al. (arXiv 2401.10241, table 9) that gives the
/// bubbles of their own search (table 5) or less. Deterministic. Throws Config where less than one
/// micro-batch may be kept.
Table search(int ranks, int micro_batches, const SearchOptions& options);

/// The same for stages that lie in a V: of what could start first, in turn forwards and backwards, each rank
/// with a preference of its own. For the costs of table 8 there that gives its bubbles to .0005, or less.
/// Throws Config where less than one micro-batch may be kept.
Table search_v(int ranks, int micro_batches, const SearchOptions& options);

}  // namespace zero::pipeline

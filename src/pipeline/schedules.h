#pragma once
// The schedules that have names. Each is a table free of deadlock for any number of ranks and micro-batches.

#include <string_view>
#include <vector>

#include "pipeline/search.h"
#include "pipeline/table.h"

namespace zero::pipeline {

enum class Kind : uint8_t {
  GPipe,        // all forwards, then all backwards (Huang et al., arXiv 1811.06965)
  OneFOneB,     // 1F1B: ranks - rank forwards, then one backward and one forward in turn (arXiv 2104.04473)
  Interleaved,  // 1F1B over `chunks` stages a rank in a loop (arXiv 2104.04473)
  ZbH1,         // 1F1B's memory, the weights' gradients fill a third of the bubble (arXiv 2401.10241)
  ZbH2,         // twice its memory, no bubble where a backward's halves cost what a forward does (as above)
  ZbV,          // stages in a V: 1F1B's memory and about no bubble (arXiv 2405.15362); found by search
  Search,       // the best that search() finds for the costs and the memory
};

/// "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "search".
std::string_view to_string(Kind kind);
const std::vector<Kind>& all_kinds();
/// Throws Config that names the kinds.
Kind kind_from(std::string_view name);

/// `chunks` counts for Interleaved only. The costs and the memory count for ZbV and Search; the order of the
/// others is the same whatever a pass costs. Throws Config for sizes that check_shape() refuses.
Table make_schedule(Kind kind, int ranks, int micro_batches, int chunks, const SearchOptions& options);

}  // namespace zero::pipeline

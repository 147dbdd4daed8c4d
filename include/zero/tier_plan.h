#pragma once
// Chooses where the states of each unit are while nobody uses them: what does not fit the memory where a rank
// computes goes to the host's or to a disk, so that a step moves the fewest seconds of bytes. Pure arithmetic
// on a plan, the same on every rank. In place of Gemini's rules (ColossalAI's `auto` placement), which act on
// what a warm-up step has measured, the plan's own figures decide.

#include <cstdint>
#include <map>
#include <string>

#include "zero/activations.h"
#include "zero/engine_options.h"
#include "zero/plan.h"

namespace zero {

/// Bytes a second that one rank moves.
struct TierRates {
  double host = 12e9;  // between a device and the host's memory, each way
  double disk_read = 1e9, disk_write = 1e9;
};

/// What a machine gives a rank.
struct TierMachine {
  TierRates rates = {};
  int64_t disk_free_bytes = INT64_MAX;
};

/// Which kinds may be moved; the others stay where EngineOptions says.
struct MovableStates {
  bool parameter = false, gradient = false, master = false, optimizer = false;
  bool any() const { return parameter || gradient || master || optimizer; }
};

struct TierRequest {
  MovableStates movable = {};
  int64_t memory_bytes = 0;          // of a rank, where it computes: its peak (peak_bytes() of activations.h)
  int64_t host_bytes = INT64_MAX;    // of a rank beside a device; on CPU there is no such tier
  int64_t disk_bytes = INT64_MAX;    // of a rank's file
  ActivationBytes activations = {};  // of a micro-batch
  int64_t other_bytes = 0;           // of memory, that neither the plan nor the activations count
  TierRates rates = {};
};

/// What moves between a rank's memory and the tiers in a step, bytes.
struct TierTraffic {
  int64_t disk_read_bytes = 0, disk_written_bytes = 0;
  int64_t host_bytes = 0;  // to a device and from it
  double seconds(const TierRates& rates) const;
};

struct TierPlan {
  std::map<std::string, StateTiers> unit_tiers;  // of every unit: for EngineOptions
  int64_t budget_bytes = -1;                     // for EngineOptions
  bool share_parameters = true;                  // for EngineOptions
  int64_t piece_numel = 0;                       // for its OffloadOptions
  Plan plan = {};                                // that these options make
  int64_t peak_bytes = 0;                        // of the memory where the rank computes
  int64_t host_bytes = 0, disk_bytes = 0;
  TierTraffic traffic = {};
  double seconds = 0;     // of the traffic, if nothing hides it
  std::string explained;  // what was chosen and why, a paragraph
};

/// What a step moves where states are as `plan` says. From and to a disk: masters and optimizer states come
/// and go once, a gradient's sum goes for each micro-batch and comes for each later one, the norm and the
/// step, parameters come for each gather and go once. Between a device and the host: what either needs of the
/// other's (RankPlan::step_up_bytes).
TierTraffic tier_traffic(const Plan& plan);

/// Takes a choice over.
void use_tiers(EngineOptions& options, const TierPlan& tiers);

/// Of all placements that fit the budgets one of the least seconds; to within a few percent where units are
/// many, the least where they are few. Pieces of states on disk are made smaller where their buffers would
/// take more than a small part of the memory. Where nothing fits otherwise, ranks share no parameters, and
/// with the budget of resident slabs left open (-1) it is that of the largest slab. `options.offload.path`
/// empty: there is no disk. Throws Config where nothing fits, with the least that does, and what make_plan()
/// throws.
TierPlan choose_tiers(const ModuleSpec& root, EngineOptions options, const RankPlaces& places,
                      const OptimizerBytes& optimizer, const TierRequest& request);

}  // namespace zero

#pragma once
// Keeps what an engine's rank has in memory within a budget when a step turns out to take more than its
// placement was chosen for: longer sequences, larger micro-batches, modules whose sizes depend on data.
//
//   zero::use_training_allocator();  // whose figures are measured, before the model is made
//   zero::Engine engine(*model, zero::AdamW{}, options, mesh);
//   zero::AdaptivePlacement placement(engine, options, {.movable = {.optimizer = true}, .memory_bytes = 6LL
//   << 30},
//                                     "run/moved");
//   ... engine.step();
//   const std::string moved = placement.after_step();  // one line, mostly empty

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "zero/engine.h"
#include "zero/tier_plan.h"

namespace zero {

/// Rebuilds what `engine` keeps where `tiers` says, between steps; values, moments, counters and the random
/// state stay as they are, to the bit. They pass through a checkpoint in `directory`, which all ranks see,
/// has room for all states and is removed afterwards; in memory they are never twice. stats() other than
/// steps begin anew. Throws Usage between backward() and step(), while a save is under way and for an engine
/// of a pipeline; Io and Corrupt as save() and load() do, and then, where the old placement can be had again,
/// with the engine as it was. Collective.
void move_states(Engine& engine, const TierPlan& tiers, const std::filesystem::path& directory);

/// Must not outlive the engine.
class AdaptivePlacement {
 public:
  /// The most bytes that this rank's device has held since it was asked last, and begins anew.
  using DevicePeak = std::function<int64_t()>;

  /// `options`: the engine's, as they were before a placement was chosen for them, if one was. `request`: as
  /// for choose_tiers(); its activations are what the placement so far was chosen for, zeros where nothing
  /// is known before a step was measured. `directory`: as for move_states(). `device_peak`: where the engine
  /// computes on a device. Throws Unsupported for a device without it and for torch optimizers, Usage for
  /// pipelines and on a CPU without use_training_allocator().
  AdaptivePlacement(Engine& engine, EngineOptions options, const TierRequest& request,
                    std::filesystem::path directory, DevicePeak device_peak = {});

  /// After a step: looks at the most that tensors have used on any rank since the last call. Where that is
  /// more than the budget, chooses again with what was measured in place of request.activations, moves the
  /// states, and says what and why in one line; else "". While a save is under way it waits for a later
  /// call. Throws Config where no placement fits, with what was measured and the least that would do.
  /// Collective.
  std::string after_step();

  int64_t peak_bytes() const { return peak_bytes_; }  // of the last step, on the rank that took the most
  int64_t moves() const { return moves_; }
  int64_t moved_bytes() const { return moved_bytes_; }  // of this rank's states, by all moves

 private:
  int64_t take_peak();
  int64_t measure();
  /// With room for a gradient that waits for a late rank, where that fits.
  TierPlan choose_for(const ActivationBytes& measured) const;
  TierPlan choose(const TierRequest& request) const;

  Engine* engine_;
  EngineOptions options_;
  TierRequest request_;
  std::filesystem::path directory_;
  DevicePeak device_peak_;
  int64_t peak_bytes_ = 0, moves_ = 0, moved_bytes_ = 0;
};

}  // namespace zero

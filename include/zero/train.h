#pragma once
// Trains what a configuration describes, on the ranks of a mesh, into a run directory. `zero train` is this
// plus arguments; docs/training.md describes the directory.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "zero/config.h"
#include "zero/evaluate.h"
#include "zero/memory_figures.h"
#include "zero/mesh.h"

namespace zero {

/// What a device knows of a step that no clock of the host tells: a simulated one.
struct DeviceFigures {
  double simulated_ms = 0;                               // that the step takes on the device
  std::map<std::string, int64_t> bytes_by_purpose = {};  // of its memory, after the step
  int64_t peak_bytes = 0;                                // the most that it held at once, of all purposes
  std::map<std::string, int64_t> peak_bytes_by_purpose = {};  // each at its own most
  double copied_in_bytes = 0, copied_out_bytes = 0;           // from the host's memory, and to it
};

/// One optimizer step, as a line of the metrics file has it.
struct StepReport {
  int64_t step = 0;  // 1 is the first
  double loss = 0;   // mean over data-parallel ranks and micro-batches, before the step
  double lr = 0;
  double grad_norm = 0;         // of the averaged gradient, before clipping
  double clip_coefficient = 1;  // that the gradient was multiplied by
  int64_t tokens = 0;           // trained on since the start of the run
  double tokens_per_s = 0;      // of this step, over all ranks
  double step_s = 0;            // wall time of this step
  double forward_s = 0;         // of it, in forwards and backwards; of a pipeline all in forward_s
  double backward_s = 0;
  double optimizer_s = 0;      // and in Engine::step(); on a device, until the host went on
  double waited_s = 0;         // of it, rank 0 blocked on collectives
  int64_t resident_bytes = 0;  // of rank 0's process, now and at its peak
  int64_t peak_resident_bytes = 0;
  int64_t slab_bytes = 0;  // of rank 0's gathered parameters beyond its own, now and at the peak
  int64_t peak_slab_bytes = 0;
  MemoryFigures memory = {};                 // of rank 0
  DiskFigures disk = {};                     // of rank 0's disk, in this step
  bool skipped = false;                      // the gradient was not finite: nothing changed
  std::string overflow = {};                 // where: StepResult::overflow
  double loss_scale = 1;                     // with fp16, of this step's losses
  std::optional<DeviceFigures> device = {};  // of this rank's, where TrainOptions::device_figures is given
};

struct TrainOptions {
  // Where to begin. "": at the beginning. "auto": at the newest checkpoint of run.directory, or at the
  // beginning where it holds none. Otherwise a checkpoint directory.
  std::string resume = {};
  // A run that is already in run.directory: false: an error; true: its files get other names.
  bool overwrite = false;
  // Rank 0 shows progress there: a bar on a terminal, else lines. Not owned. Null: shows nothing.
  std::FILE* progress = nullptr;
  // Progress begins with what is trained and where its states are. False for a run that was just shown.
  bool introduction = true;
  // Asked after each step on every rank: a signal number ends training after that step on all ranks, with a
  // checkpoint where checkpoints are on. 0: go on.
  std::function<int()> stop_signal = {};
  // Ends training after this step as a signal would, to be gone on with by another call; 0: at run.steps.
  int64_t pause_after = 0;
  // Asked after each step on every rank: true on any of them saves a checkpoint after that step and goes on.
  std::function<bool()> save_requested = {};
  // Called on every rank after each step; fields that say "rank 0" are the caller's rank's here.
  std::function<void(const StepReport&)> on_step = {};
  // Asked on every rank before and after each step: what its device did since it was asked last.
  std::function<DeviceFigures()> device_figures = {};
};

struct TrainResult {
  int64_t first_step = 0;                     // the step it began after: 0, or the resumed checkpoint's
  int64_t steps = 0;                          // the step it ended with
  int64_t tokens = 0;                         // trained on since the start of the run
  double loss = 0;                            // of the last step; NaN where there was none to make
  std::optional<EvalResult> evaluation = {};  // the last one made, where data.eval is given
  std::filesystem::path checkpoint = {};      // the last one saved; empty: none
  int64_t failed_saves = 0;                   // that training went on after (checkpoint.on_failure)
  int signal = 0;                             // that ended training early; 0: none
};

/// Checks all that can be checked without ranks: configuration, token files, tokenizer, run directory,
/// resumed checkpoint. Changes nothing. `config` is resolved for `ranks`. Throws Config, Unsupported, Io or
/// Corrupt.
void check_run(const Config& config, int ranks, const TrainOptions& options = {});

/// Trains until run.steps; does nothing more than an evaluation where that is reached already. `config` is
/// resolved for the mesh's size and the same on all ranks. Collective; sets the default generator. A resumed
/// run has the losses of an uninterrupted one, to the bit at the same number of ranks. Throws as check_run,
/// before anything is changed, and what the engine throws; where one rank fails, all do.
TrainResult train(const Config& config, const Mesh& mesh, const TrainOptions& options = {});

}  // namespace zero

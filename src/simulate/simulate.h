#pragma once
// One rank of a job that is not there: the engine runs with shapes instead of data and without the other
// ranks, on the device and the network that descriptions give. Rajbhandari et al., "ZeRO" (arXiv 1910.02054)
// say what a rank holds and sends; this is what it does with it, when.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "simulate/network.h"
#include "simulate/step_run.h"
#include "virtual/description.h"
#include "zero/config.h"

namespace zero::simulate {

struct SimulateOptions {
  int ranks = 1, rank = 0;
  virtual_device::DeviceDescription device = {};
  Network network = {};
  std::optional<int64_t> memory_bytes = {};  // of the device; unset: what its description says
  int steps = 0;  // the last is the one that is told of; 0: as many as lead to a steady one
  bool trace = false;
};

/// One touch of a unit in the steady step, and what it makes the engine do.
struct Touch {
  std::string unit;
  std::vector<std::string> evicted, fetched;  // in this order, before the unit is used
};

struct Simulation {
  std::string model, types;  // "gpt2, 12 layers, width 768"; "bf16 parameters, AdamW, fp32 gradients"
  int64_t parameters = 0, tokens = 0;  // tokens: of a step over all ranks
  StepFigures step;
  std::vector<Touch> schedule;
  std::string trace_events;  // for zero::trace_document(), in simulated time
};

/// `config` is resolved for options.ranks; neither its data nor its model's files are opened. One simulation
/// at a time in a process. Throws Config for a rank that is none of the ranks and for memory that does not
/// suffice, naming what holds it; Unsupported for what cannot be simulated.
Simulation simulate(const Config& config, const SimulateOptions& options);

/// A short table for people, at most 100 columns; and JSON with exact figures.
std::string to_text(const Simulation& simulation, const SimulateOptions& options);
std::string to_json(const Simulation& simulation, const SimulateOptions& options);

}  // namespace zero::simulate

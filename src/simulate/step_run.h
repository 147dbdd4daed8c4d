#pragma once
// Training steps of a configured model on one rank's virtual device, and what the last of them took: of a
// rank among others, or of one whose others are imagined.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "virtual/virtual_device.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/mesh.h"

namespace zero::simulate {

struct StepFigures {
  // Simulated, of the last step: from its first launch until device and host are done.
  double step_ns = 0;
  double compute_ns = 0, copies_ns = 0;              // busy
  double copied_in_bytes = 0, copied_out_bytes = 0;  // from the host to the device, and back
  double communication_ns = 0;                       // some collective is under way
  double exposed_ns = 0;                             // of it, no kernel runs
  double flops = 0;
  int64_t kernels = 0, host_reads = 0;
  std::map<Operation, Traffic> traffic;  // of the last step, this rank's part of all groups
  int64_t all_gather_elements = 0, reduce_scatter_elements = 0, all_reduce_elements = 0;  // of the engine

  virtual_device::DeviceReport memory;  // peaks over all steps; what stood before the first is used_before
  int64_t used_before_bytes = 0;
  std::vector<std::string> order;  // of units in the last step, as the engine touched them
  Plan plan;
};

struct StepRunOptions {
  // The first finds out the order of units; what one leaves for the next is the same after the second.
  // 0: as many as that takes.
  int steps = 0;
  bool without_values = true;  // initial values are neither drawn nor read
};

/// Each step is that of `zero train`: micro-batches of zeros, the optimizer's step, the loss summed and read.
/// `config` is resolved for the mesh, whose device is the first of `devices`. Collective over the mesh.
/// Throws what the engine throws, Config for device memory that does not suffice.
StepFigures run_steps(const Config& config, const Mesh& mesh, virtual_device::VirtualDevices& devices,
                      const StepRunOptions& options);

}  // namespace zero::simulate

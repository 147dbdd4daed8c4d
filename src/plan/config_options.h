#pragma once
// What a configuration tells the engine.

#include "zero/activations.h"
#include "zero/config.h"
#include "zero/engine_options.h"

namespace zero {

/// Everything but the schedule, which is the optimizer's affair. `ranks`: of the data-parallel axis, for
/// prescale_gradients, which divides by all of them before the reduction. Throws Usage for a configuration
/// that is not resolved, Unsupported for types that the engine does not train in.
EngineOptions options_from_config(const Config& config, int ranks);

/// Whether ranks compute on CUDA devices rather than CPUs. `cuda_devices`: that a host has;
/// parallel.backend auto goes by them, nccl needs them, shm and gloo do without.
bool runs_on_cuda(const ParallelConfig& parallel, int cuda_devices);

/// The ranks along "tp".
LayerShare layer_share_of(const Config& config);

}  // namespace zero

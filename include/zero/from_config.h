#pragma once
// What the configuration says, in the words of the parts that act on it. Pure functions of a resolved Config
// (see resolve()); errors carry the place of the key in the file.

#include <torch/types.h>

#include <string>
#include <vector>

#include "zero/config.h"
#include "zero/engine.h"
#include "zero/lr_schedule.h"
#include "zero/mesh.h"
#include "zero/optimizer.h"

namespace torch::nn {
class Module;
}

namespace zero {

/// `optimizer`. DeepSpeed's "Adam" is AdamW unless adam_w_mode is false.
OptimizerSpec optimizer_of(const Config& config);

/// `scheduler`. Throws Config for values that make no schedule.
LrSchedule schedule_of(const Config& config);

/// Everything else that the engine is told. `ranks`: of the data-parallel axis, for prescale_gradients, which
/// divides by all of them before the reduction. Throws Unsupported for types that the engine does not train.
EngineOptions engine_options_of(const Config& config, int ranks);

/// Where the configuration leaves states open ("auto"): chooses within its budgets, for the ranks of the
/// mesh's axis "dp" and what offload.path's disk does now, writes that into `options` and says it in a
/// paragraph; "" where nothing is open. Collective. Throws Config where nothing fits, Config or Io for the
/// directory.
std::string place_states(EngineOptions& options, const Config& config, const Mesh& mesh);

/// Throws Config or Io where states cannot be where the configuration wants them: a directory that is none,
/// in memory or not writable; a disk with less space than `ranks` ranks of this host need; budgets that
/// nothing fits. Before any rank is there.
void check_offload(const Config& config, int ranks);

/// CUDA devices that LibTorch finds on this host; loads LibTorch's CUDA half where there is a driver.
int cuda_devices();

/// `parallel`. Throws Unsupported where the backend needs a device that is not there, Config where
/// communication asks for what the chosen device does not have.
MeshOptions mesh_options_of(const Config& config);

/// `cuda`, for a rank's device, before the first tensor there; does nothing for other devices. Throws Config
/// for more memory than the device has, Unsupported for a limit without libzero_cuda.so.
void use_cuda_settings(const Config& config, torch::Device device);

/// Compute threads of one of `local_ranks` ranks on this host: parallel.threads_per_rank, else its part of
/// the cores.
int compute_threads_of(const Config& config, int local_ranks);

/// Names of the model's parameters that are trained, in module order. Throws Config for patterns (`frozen`,
/// `trainable`, `lora.targets`, `parameter_groups`) that match nothing and where nothing is left to train.
std::vector<std::string> trained_names_of(const Config& config);

/// Lets no gradient reach the parameters of the configured model that are not trained. Call it before the
/// engine is made; values may be lazy. Throws as trained_names_of.
void freeze(torch::nn::Module& module, const Config& config);

}  // namespace zero

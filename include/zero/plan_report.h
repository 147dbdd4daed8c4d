#pragma once
// What `zero plan` says: bytes a rank and traffic a step for every stage beside each other, from a bare count
// of parameters or from a configuration. As a table for people (at most 100 columns) and as JSON.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero/activations.h"
#include "zero/axis_traffic.h"
#include "zero/config.h"
#include "zero/plan.h"
#include "zero/tier_plan.h"

namespace zero {

/// A whole number as people write it: "7500000000", "7.5e9", "7.5B", "124M", "1T" (k, M, B or G, T). Exact,
/// at most 2^56. Throws Config: "PLACE: expected ..., got ..." for anything else, and for numbers that are
/// not whole or below 1.
int64_t parse_count(std::string_view text, std::string_view place);

/// A size: "32GB" (10^9), "32GiB" (2^30), kB to TB, KiB to TiB, or plain bytes; rounded down. Throws Config
/// as above.
int64_t parse_bytes(std::string_view text, std::string_view place);

/// "31.4 GB": three digits, powers of 1000. "512 B" below 1 kB.
std::string human_bytes(int64_t bytes);
/// "7.50G", without a unit: "124M", "3".
std::string human_count(int64_t count);

/// Model states from a count alone, as the ZeRO paper accounts for them (arXiv 1910.02054, figure 1).
struct CountOptions {
  int64_t parameters = 0;
  int ranks = 1;
  int64_t parameter_bytes = 2;          // of one parameter
  int64_t gradient_bytes = 2;           // the paper's fp16 gradient
  int64_t optimizer_bytes = 12;         // K: fp32 master, momentum, variance
  int64_t engine_gradient_bytes = 4;    // what this library accumulates in: data_types.grad_accum_dtype
  int64_t engine_optimizer_bytes = 10;  // and keeps beside a bf16 parameter: the master's other half, moments
  int accumulation_steps = 1;
  std::optional<int64_t> memory_bytes = {};  // of a rank: asks for the largest model
};

/// Bytes of one rank. A shard has ceil(parameters / ranks) elements.
struct CountStage {
  int stage = 0;
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;  // master copy included
  int64_t engine_gradient_bytes =
      0;  // as make_plan counts: stage 1 keeps whole gradients only to accumulate them
  int64_t engine_optimizer_bytes = 0;
  int64_t traffic_elements = 0;  // an optimizer step; stage 3 with no more than one unit resident
  std::optional<int64_t> largest_parameters = {};         // whose states fit memory_bytes
  std::optional<int64_t> engine_largest_parameters = {};  // the same of engine_state_bytes()
  int64_t state_bytes() const { return parameter_bytes + gradient_bytes + optimizer_bytes; }
  int64_t engine_state_bytes() const {
    return parameter_bytes + engine_gradient_bytes + engine_optimizer_bytes;
  }
};
struct CountPlan {
  CountOptions options;
  std::array<CountStage, 4> stages;
};

/// Throws Config for a count outside 1..2^56, ranks or accumulation < 1, and traffic beyond 2^63.
CountPlan plan_from_count(const CountOptions& options);

/// Bytes a rank copies before it writes a checkpoint in the background: fp32 values and moments of what is
/// trained, and frozen parameters unless `trainable_only`, each replica its part.
int64_t save_copy_bytes(const Plan& plan, bool trainable_only);

/// The plan of a configured model at every stage.
struct ConfigPlan {
  std::string model;               // "gpt2, 12 layers, width 768"
  std::string types;               // "bf16 parameters, AdamW, fp32 gradients"
  int64_t parameters = 0;          // of the model
  int64_t parameters_of_rank = 0;  // less where ranks share each layer: a rank's part
  int chosen_stage = 0;
  int hosts = 1;
  bool on_cuda = false;  // where ranks compute; activations are counted as on CPU all the same
  Communication communication = Communication::exact;  // how gradients are summed
  std::array<Plan, 4> stages;
  // At most, while a checkpoint is written in the background: the rank's copy of what it saves. 0 where
  // nothing is (checkpoint.async, checkpoint.interval_steps).
  std::array<int64_t, 4> save_copy_bytes = {};
  ActivationBytes activations = {};   // of one micro-batch
  LayerShare layers = {};             // along "tp"; the stages' ranks are those along "dp"
  TensorTraffic tensor_traffic = {};  // of a rank and step, along "tp"
  /// At the peak.
  int64_t total_bytes(size_t stage) const {
    return peak_bytes(stages[stage], activations) + save_copy_bytes[stage];
  }
  int64_t resident_bytes(size_t stage) const { return total_bytes(stage) + stages[stage].rank.common_bytes; }
  int all_ranks() const { return stages[0].ranks * layers.ranks; }
  int host_ranks() const { return all_ranks() / hosts; }
  std::optional<int64_t> memory_bytes;  // of a rank
  std::optional<TierPlan> tiers = {};   // of the chosen stage, where the configuration leaves some open
  TierMachine machine = {};             // that it was chosen for
  std::array<CountStage, 4>
      count;  // the same types from the bare count; has the largest model for memory_bytes
};

/// `config` must be resolved for `ranks`, which are spread evenly over `hosts`; `model` is its tree
/// (trained_spec() of model_spec.h), where ranks share each layer the last one's part (tensor_part()). The
/// device is the one that a run takes where a host has `cuda_devices` (parallel.backend). Where parameters
/// are in CPU memory that ranks can share (residency.share, auto or shm) and a shard group is on one host, it
/// keeps them once. Throws Config for ranks that `hosts` does not divide, shapes that make no sense,
/// Unsupported for a model type that is not planned from a configuration.
ConfigPlan plan_from_config(const Config& config, const ModuleSpec& model, int ranks,
                            std::optional<int64_t> memory_bytes = {}, int hosts = 1, int cuda_devices = 0,
                            const TierMachine& machine = {});

/// Tables for a terminal or a log.
std::string to_text(const CountPlan& plan);
std::string to_text(const ConfigPlan& plan);

/// JSON with exact integers. Both hold parameters, ranks and stages: [{stage, parameter_bytes_per_rank,
/// gradient_bytes_per_rank, optimizer_bytes_per_rank (master included), state_bytes_per_rank,
/// traffic_elements_per_step, ...}].
std::string to_json(const CountPlan& plan);
std::string to_json(const ConfigPlan& plan);

/// What `zero plan` was asked. Give a configuration or a count, not both.
struct PlanRequest {
  std::string config = {};                  // path
  std::vector<std::string> overrides = {};  // of the configuration: "section.key=value"
  std::string parameters = {};              // a count: see parse_count
  int ranks = 0;                            // 0: parallel.ranks of the configuration, else 1
  int hosts = 1;                            // that the ranks of a configuration are on
  int cuda_devices = 0;                     // of each of these
  int accumulation_steps = 1;               // for a count
  std::string memory = {};                  // of a rank: see parse_bytes; "" asks nothing
  // Where states are to be chosen (tier_plan.h): budgets of a rank and a directory on a disk. "" for both:
  // only where the configuration says "auto".
  std::string host_memory = {}, disk = {};
  std::string cluster = {};  // path of a description (docs/cluster.md): predicts memory and time on it
  bool search = false;       // the best settings for the cluster
  std::function<TierMachine(const OffloadConfig&, int host_ranks)> machine = {};  // measures; empty: nominal
  bool json = false;
};
struct PlanAnswer {
  std::string text;                // for standard output
  std::vector<std::string> notes;  // about the configuration, for standard error
};
/// From a configuration to trees: trained_spec() and tensor_part() of model_spec.h.
using SpecOf = std::function<ModuleSpec(const Config&)>;
using PartOf = std::function<ModuleSpec(const Config&, const ModuleSpec& whole, int rank)>;
/// The whole verb but the command line. Throws Config, Io or Unsupported.
PlanAnswer answer(const PlanRequest& request, const SpecOf& spec_of, const PartOf& part_of);

}  // namespace zero

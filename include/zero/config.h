#pragma once
// One JSON file says everything about a run. DeepSpeed's keys mean what they mean there; sections of our own
// for the rest. Strict: an unknown key, a wrong type or a contradiction is an error with file and line.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/config_sections.h"
#include "zero/recompute_policy.h"

namespace zero {

/// Where each given key was written; never part of a comparison.
struct ConfigOrigin {
  std::string file;  // as handed to load_config
  std::map<std::string, std::string, std::less<>>
      places;                      // "section.key" -> "file:line" or "--set section.key=value"
  std::vector<std::string> notes;  // accepted keys that have no effect, one line each; print them
  bool operator==(const ConfigOrigin&) const { return true; }
};

struct Config {
  int64_t train_batch_size = 0;        // samples an optimizer step over all ranks; 0: resolve() infers it
  int64_t train_micro_batch_size = 0;  // samples a rank and micro-batch (.._per_gpu); 0: resolve() infers it
  int64_t gradient_accumulation_steps = 0;  // micro-batches an optimizer step; 0: resolve() infers it
  double gradient_clipping = 1;             // global L2 norm; 0: off
  bool prescale_gradients = false;          // divide by the number of ranks before the reduction
  double gradient_predivide_factor = 1;     // divided by before the reduction, the rest after it
  PrecisionConfig precision;
  ZeroConfig zero;
  ResidencyConfig residency;
  OffloadConfig offload;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  std::vector<ParameterGroupConfig> parameter_groups;
  std::vector<std::string> frozen;     // globs, see ParameterGroupConfig: names that are not trained
  std::vector<std::string> trainable;  // globs: if there are any, only these names are trained
  LoraConfig lora;
  RecomputePolicy recompute;  // activation_checkpointing
  bool cpu_operators = true;  // kernels of our own in place of slow ones of LibTorch's
  ModelConfig model;
  DataConfig data;
  ParallelConfig parallel;
  CudaConfig cuda;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  RunConfig run;
  ConfigOrigin origin;

  /// Where `key` ("model.heads") was given: "file:line" or "--set ..."; else its section's place, else the
  /// file.
  std::string place(std::string_view key) const;

  bool operator==(const Config&) const = default;
};

/// Reads and checks a file. Comments (// and /* */) and trailing commas are allowed; integers may be written
/// 5e8. `overrides` are "section.key=value", applied in order; value is JSON, or a string where it is not
/// JSON. Throws Io (cannot be read) or Config / Unsupported, one line a problem and all of them at once:
///   config error: FILE:LINE: section.key: expected ..., got ...; did you mean "..."?
Config load_config(const std::string& path, std::span<const std::string> overrides = {});

/// The same for a text; `name` stands for the file in errors.
Config parse_config(std::string_view text, std::string_view name = "config",
                    std::span<const std::string> overrides = {});

/// Fills in everything that depends on other values: batch sizes from the number of ranks (DeepSpeed's
/// inference), types, seeds, lengths, step totals, byte budgets. Idempotent for the same ranks.
/// Checks every value first, so that a Config may be made by hand. Throws Config for batch sizes that do not
/// multiply, parallel.ranks that differ, a shard group that does not divide.
Config resolve(Config config, int ranks);

/// Of so many ranks, those that have samples of their own: without those that share layers.
int data_ranks(const Config& config, int ranks);

/// The whole configuration as JSON, keys in a fixed order; parse_config of it gives an equal Config.
std::string to_json(const Config& config);

/// One key that the loader knows.
struct ConfigKey {
  enum class Support {
    Bound,      // read into Config
    Shorthand,  // read into the field of another key
    Hint,       // cannot change the result: any valid value is accepted, a note says that it has no effect
    OffOnly,    // accepted only at the value that means off or default; anything else is Unsupported
  };
  std::string path;                  // "zero_optimization.stage"; "parameter_groups[].lr"
  std::vector<std::string> aliases;  // other spellings of the last part
  std::string type;                  // what is expected, in words
  std::string default_value;         // JSON; "" for a shorthand (DeepSpeed's for a hint)
  std::string doc;
  Support support = Support::Bound;
};

/// Every known key in the order of to_json.
std::vector<ConfigKey> config_keys();

/// The table of docs/configuration.md, made from config_keys().
std::string config_reference();

}  // namespace zero

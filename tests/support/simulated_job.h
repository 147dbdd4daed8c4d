#pragma once
// A small GPT-2 and a small machine for simulations. Its activations and weights are too large to keep
// values.

#include <nlohmann/json.hpp>
#include <string>

#include "simulate/simulate.h"
#include "support/virtual_machine.h"

namespace zero::simulate::testing {

/// `patch`: JSON that is merged over the configuration.
inline Config small_config(int ranks, int stage, const std::string& patch = "{}") {
  nlohmann::json json = {{"train_micro_batch_size_per_gpu", 4},
                         {"gradient_accumulation_steps", 2},
                         {"bf16", {{"enabled", true}}},
                         {"zero_optimization", {{"stage", stage}, {"reduce_bucket_size", 100000}}},
                         {"residency", {{"budget", 2000000}}},
                         {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
                         {"model",
                          {{"type", "gpt2"},
                           {"vocab_size", 600},
                           {"context_length", 64},
                           {"layers", 4},
                           {"width", 192},
                           {"heads", 4}}}};
  json.merge_patch(nlohmann::json::parse(patch));
  return resolve(parse_config(json.dump(), "small"), ranks);
}

inline SimulateOptions options_on_plain(int ranks, int rank) {
  SimulateOptions options;
  options.ranks = ranks;
  options.rank = rank;
  options.device =
      virtual_device::description_from_text(virtual_device::testing::kPlainMachine, "plain machine");
  options.network = {8, options.device.within_host, options.device.between_hosts,
                     options.device.network_cards};
  return options;
}

}  // namespace zero::simulate::testing

// ColossalAI's keys of where states are: GeminiPlugin's, and those of the older ZeRO with its shard
// strategies.

#include "config/rows.h"

#define ZERO_AT(path) (+[](Config & config) -> auto& { return config.path; })

namespace zero::config {

namespace {

// A word that decides where every kind of state is.
Row policy_row(const std::string& name,
               const std::vector<std::pair<std::string, std::optional<TierChoice>>>& words,
               const std::string& doc) {
  Format<std::optional<TierChoice>> format = choice(words);
  Row row;
  row.name = name;
  row.type = format.expected;
  row.doc = doc;
  row.support = ConfigKey::Support::Shorthand;
  row.same_as = "offload.optimizer";
  row.also_sets = {"offload.parameter", "offload.gradient"};
  row.read = [format](Reader& reader, const Value& value, const std::string& path, Config& config) {
    std::optional<TierChoice> all;
    if (!reader.take(format, value, path, all))
      return reader.wrong_value(value, path, format.expected, format.choices);
    if (!all) {  // other keys say it
      reader.origin.places.erase(path);
      return;
    }
    config.offload.parameter = config.offload.gradient = config.offload.optimizer = *all;
  };
  return row;
}

// A share that goes to the host.
Row fraction_row(const std::string& name, TierChoice& (*kind)(Config&), double& (*ratio)(Config&),
                 const std::string& kind_key, const std::string& ratio_key, const std::string& doc) {
  Row row = shorthand(name, ratio, number_within(0, 1), kind_key, doc);
  row.also_sets = {ratio_key};
  row.read = [kind, read = row.read, ratio](Reader& reader, const Value& value, const std::string& path,
                                            Config& config) {
    read(reader, value, path, config);
    kind(config) = ratio(config) > 0 ? TierChoice::Host : TierChoice::Device;
  };
  return row;
}

// ColossalAI counts what is sharded, this library what stays gathered.
Format<double> rest_of_one() {
  Format<double> format = number_within(0, 1);
  format.parse = [parse = format.parse](const Value& value, double& out) {
    double share = 0;
    if (!parse(value, share)) return false;
    out = 1 - share;
    return true;
  };
  return format;
}

}  // namespace

Row gemini_row() {
  return section<Config>(
      "gemini",
      {policy_row("placement_policy", {{"static", std::nullopt}, {"auto", TierChoice::Auto}},
                  "auto: parameters, gradients and optimizer states where they cost the least within "
                  "offload.memory; static: as the fractions say"),
       policy_row("tensor_placement_policy",
                  {{"cuda", TierChoice::Device}, {"cpu", TierChoice::Host}, {"auto", TierChoice::Auto}},
                  "cuda: all states where the rank computes; cpu: all in the host's memory; auto as above"),
       shorthand("shard_param_frac", ZERO_AT(residency.gathered_ratio), rest_of_one(), "residency.gathered",
                 "share of the parameters that is sharded; the rest stays gathered over a step"),
       fraction_row("offload_optim_frac", ZERO_AT(offload.optimizer), ZERO_AT(offload.how.ratio),
                    "offload.optimizer", "offload.ratio", "share of optimizer states on the host"),
       fraction_row("offload_param_frac", ZERO_AT(offload.parameter), ZERO_AT(offload.how.parameter_ratio),
                    "offload.parameter", "offload.parameter_ratio",
                    "share of parameters on the host; needs the other two fractions to be 1"),
       shorthand("shard_strategy", ZERO_AT(residency.shard_unit),
                 choice<ShardUnit>({{"BucketTensorShardStrategy", ShardUnit::Bucket},
                                    {"TensorShardStrategy", ShardUnit::Tensor}}),
                 "residency.shard_unit", "what is cut into a part a rank"),
       shared_shorthand("pin_memory", ZERO_AT(offload.how.pin_memory), boolean(), "offload.pin_memory",
                        "page-locked memory (ColossalAI: false)"),
       hint("warmup_non_model_data_ratio", number_within(0, 1), 0.8, "the plan knows what activations take"),
       hint("steady_cuda_cap_ratio", number_within(0, 1), 0.9, "offload.memory is the bound"),
       hint("gpu_margin_mem_ratio", number_within(0, 1), 0.0, "offload.memory is the bound"),
       hint<int64_t>("search_range_m", integer(1), 32, "units follow the module tree"),
       hint<std::optional<int64_t>>("hidden_dim", nullable(integer(1)), std::nullopt,
                                    "units follow the module tree"),
       hint("min_chunk_size_m", number_at_least(0), 32.0, "units follow the module tree")});
}

}  // namespace zero::config

#include "hf/rope.h"

namespace zero::hf {
namespace {

void read_scaling(ConfigReader& scaling, const std::string& type_key, ModelConfig& model) {
  const std::string type = scaling.text(type_key, "default");
  if (type == "default") return;
  if (type != "llama3" || model.type != "llama")
    return scaling.problem(type_key, model.type == "llama" ? "default or llama3" : "default");
  model.rope_scaling.factor = scaling.positive("factor");
  model.rope_scaling.low_freq_factor = scaling.positive("low_freq_factor");
  model.rope_scaling.high_freq_factor = scaling.positive("high_freq_factor");
  model.rope_scaling.original_context = scaling.count("original_max_position_embeddings");
  if (model.rope_scaling.high_freq_factor <= model.rope_scaling.low_freq_factor)
    scaling.problem("high_freq_factor", "more than low_freq_factor");
  if (model.rope_scaling.factor < 1) scaling.problem("factor", "at least 1");
}

}  // namespace

void read_rope(ConfigReader& reader, const std::string& theta_key, ModelConfig& model) {
  model.rope_theta = reader.positive(theta_key, 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* json = reader.object(key);
    if (!json) continue;
    ConfigReader inner(*json);
    model.rope_theta = inner.positive("rope_theta", model.rope_theta);
    if (model.type == "gpt_neox")
      model.rotary_fraction = inner.positive("partial_rotary_factor", model.rotary_fraction);
    read_scaling(inner, json->contains("rope_type") || !json->contains("type") ? "rope_type" : "type", model);
    reader.add(key, inner);
  }
  if (model.rotary_fraction > 1) reader.problem("rotary_pct", "at most 1");
}

nlohmann::ordered_json llama3_scaling(const RopeScaling& scaling) {
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_context}};
}

}  // namespace zero::hf

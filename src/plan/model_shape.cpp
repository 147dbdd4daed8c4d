#include "zero/model_shape.h"

#include <algorithm>

#include "base/glob.h"
#include "zero/error.h"

namespace zero {
namespace {

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_matches(pattern, name); });
}

// Parameters and linear layers, in module order.
struct Names {
  std::vector<std::string> parameters, linears;
};

void collect(const ModuleSpec& module, Names& names) {
  for (const ParameterSpec& parameter : module.parameters) names.parameters.push_back(parameter.name);
  if (module.linear_in > 0) names.linears.push_back(module.name);
  for (const ModuleSpec& child : module.children) collect(child, names);
}

void check_patterns(const Config& config, const char* key, const std::vector<std::string>& patterns,
                    const std::vector<std::string>& names, const char* what) {
  for (const std::string& pattern : patterns) {
    const bool any = std::any_of(names.begin(), names.end(),
                                 [&](const std::string& name) { return glob_matches(pattern, name); });
    require(any, ErrorKind::Config, config.place(key),
            std::string(key) + ": expected a pattern of " + what + " names, got \"" + pattern +
                "\", which matches none",
            "names look like \"" + names.front() + "\" and \"" + names.back() + "\"");
  }
}

// PEFT's tree: two linear layers without biases inside the layer that they adapt.
ModuleSpec adapter(const std::string& name, int64_t in, int64_t out) {
  ModuleSpec spec;
  spec.name = name;
  spec.parameters.push_back({.name = name + ".weight", .shape = {out, in}});
  return spec;
}

void add_adapters(ModuleSpec& module, const LoraConfig& lora) {
  for (ModuleSpec& child : module.children) add_adapters(child, lora);
  if (module.linear_in == 0 || !matches_any(lora.targets, module.name)) return;
  module.children.push_back(adapter(module.name + ".lora_A", module.linear_in, lora.rank));
  module.children.push_back(adapter(module.name + ".lora_B", lora.rank, module.linear_out));
}

bool is_trained(const Config& config, const std::string& name) {
  if (config.lora.rank > 0) return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
  return !matches_any(config.frozen, name) &&
         (config.trainable.empty() || matches_any(config.trainable, name));
}

// How many parameters are trained.
int64_t mark_trained(ModuleSpec& module, const Config& config) {
  int64_t trained = 0;
  for (ParameterSpec& parameter : module.parameters) {
    parameter.trainable = is_trained(config, parameter.name);
    trained += parameter.trainable ? 1 : 0;
  }
  for (ModuleSpec& child : module.children) trained += mark_trained(child, config);
  return trained;
}

ModelShape llama_shape_of(const ModelConfig& m) {
  const int64_t head_width = m.head_width > 0 ? m.head_width : m.width / m.heads;
  const RopeScalingConfig& s = m.rope_scaling;
  return LlamaShape{.vocab_size = m.vocab_size,
                    .context_length = m.context_length,
                    .layers = m.layers,
                    .width = m.width,
                    .heads = m.heads,
                    .kv_heads = m.kv_heads > 0 ? m.kv_heads : m.heads,
                    .head_width = head_width,
                    .mlp_width = m.mlp_width > 0 ? m.mlp_width : 4 * m.width,
                    .norm_epsilon = m.norm_epsilon,
                    .rope_theta = m.rope_theta,
                    .rope_scaling = {.factor = s.factor,
                                     .low_freq_factor = s.low_freq_factor,
                                     .high_freq_factor = s.high_freq_factor,
                                     .original_context = s.original_context},
                    .tied_head = m.tied_head.value_or(false)};
}

ModelShape neox_shape_of(const ModelConfig& m) {
  return GptNeoxShape{.vocab_size = m.vocab_size,
                      .context_length = m.context_length,
                      .layers = m.layers,
                      .width = m.width,
                      .heads = m.heads,
                      .mlp_width = m.mlp_width > 0 ? m.mlp_width : 4 * m.width,
                      .norm_epsilon = m.norm_epsilon,
                      .rope_theta = m.rope_theta,
                      .rotary_fraction = m.rotary_fraction,
                      .parallel_residual = m.parallel_residual,
                      .tanh_gelu = m.tanh_gelu,
                      .tied_head = m.tied_head.value_or(false)};
}

ModelShape gpt2_shape_of(const ModelConfig& m) {
  return Gpt2Shape{.vocab_size = m.vocab_size,
                   .context_length = m.context_length,
                   .layers = m.layers,
                   .width = m.width,
                   .heads = m.heads,
                   .dropout = m.dropout,
                   .layer_norm_epsilon = m.norm_epsilon};
}

ModelShape unchecked_shape(const ModelConfig& model) {
  require(model.heads >= 1, ErrorKind::Config, "model.heads", "expected at least 1");
  if (model.type == "gpt2") return gpt2_shape_of(model);
  if (model.type == "llama") return llama_shape_of(model);
  if (model.type == "gpt_neox") return neox_shape_of(model);
  fail(ErrorKind::Unsupported, "model.type", "unknown architecture \"" + model.type + "\"",
       "known ones are gpt2, llama, gpt_neox");
}

}  // namespace

ModelShape shape_of(const Config& config) {
  const ModelShape shape = unchecked_shape(config.model);
  std::visit([](const auto& s) { s.check(); }, shape);
  return shape;
}

ModuleSpec model_spec(const ModelShape& shape) {
  if (const auto* gpt2 = std::get_if<Gpt2Shape>(&shape)) return gpt2_spec(*gpt2);
  if (const auto* llama = std::get_if<LlamaShape>(&shape)) return llama_spec(*llama);
  return gpt_neox_spec(std::get<GptNeoxShape>(shape));
}

ModuleSpec trained_spec(const Config& config) {
  ModuleSpec spec = model_spec(shape_of(config));
  Names names;
  collect(spec, names);
  check_patterns(config, "frozen", config.frozen, names.parameters, "parameter");
  check_patterns(config, "trainable", config.trainable, names.parameters, "parameter");
  if (config.lora.rank > 0) {
    check_patterns(config, "lora.targets", config.lora.targets, names.linears, "linear layers'");
    add_adapters(spec, config.lora);
  }
  require(mark_trained(spec, config) > 0, ErrorKind::Config, config.place("frozen"),
          "frozen: expected patterns that leave something to train, got ones that match every parameter");
  return spec;
}

int64_t context_length_of(const ModelShape& shape) {
  return std::visit([](const auto& s) { return s.context_length; }, shape);
}

int64_t vocab_size_of(const ModelShape& shape) {
  return std::visit([](const auto& s) { return s.vocab_size; }, shape);
}

}  // namespace zero

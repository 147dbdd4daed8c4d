// The sections `model` and `lora`.

#include "config/rows.h"

#define ZERO_AT(path) (+[](Config & config) -> auto& { return config.path; })

namespace zero::config {

namespace {

constexpr int64_t kMostModelSize = 1 << 24;

struct ModelSize {
  const char* name;
  void (*set)(ModelConfig&);
};

template <int64_t layers, int64_t width, int64_t heads>
void set_gpt2(ModelConfig& model) {
  model.type = "gpt2";
  model.layers = layers;
  model.width = width;
  model.heads = heads;
}

void set_tinyllama(ModelConfig& model) {
  model.type = "llama";
  model.vocab_size = 32000;
  model.context_length = 2048;
  model.layers = 22;
  model.width = 2048;
  model.heads = 32;
  model.kv_heads = 4;
  model.mlp_width = 5632;
}

void set_gpt_neox_20b(ModelConfig& model) {
  model.type = "gpt_neox";
  model.vocab_size = 50432;
  model.context_length = 2048;
  model.layers = 44;
  model.tanh_gelu = true;
  model.width = 6144;
  model.heads = 64;
}

// GPT-2's four sizes, the 10B of DeepSpeed's Megatron tutorial, and one of each other architecture.
constexpr ModelSize kModelSizes[] = {
    {"gpt2", set_gpt2<12, 768, 12>},        {"gpt2-medium", set_gpt2<24, 1024, 16>},
    {"gpt2-large", set_gpt2<36, 1280, 20>}, {"gpt2-xl", set_gpt2<48, 1600, 25>},
    {"gpt2-10b", set_gpt2<50, 4096, 32>},   {"tinyllama-1.1b", set_tinyllama},
    {"gpt-neox-20b", set_gpt_neox_20b}};

Row model_size_row() {
  Format<ModelConfig> format;
  for (const ModelSize& size : kModelSizes) format.choices.push_back(size.name);
  format.expected = or_list(format.choices);
  format.parse = [](const Value& value, ModelConfig& model) {
    for (const ModelSize& size : kModelSizes) {
      if (!value.is_string(size.name)) continue;
      size.set(model);
      return true;
    }
    return false;
  };
  format.print = [](const ModelConfig&) { return Json(); };
  return shorthand(
      "size", +[](Config& c) -> ModelConfig& { return c.model; }, format, "",
      "sets the type and its numbers; what is given beside it wins");
}

bool is_gpt2(const Config& c) { return c.model.type == "gpt2"; }
bool is_llama(const Config& c) { return c.model.type == "llama"; }
bool is_gpt_neox(const Config& c) { return c.model.type == "gpt_neox"; }
bool has_rotation(const Config& c) { return !is_gpt2(c); }

// `type` stands before the rows that depend on it.
Rows shape_rows() {
  return {
      field("type", ZERO_AT(model.type),
            choice<std::string>({{"gpt2", "gpt2"}, {"llama", "llama"}, {"gpt_neox", "gpt_neox"}}),
            "architecture"),
      field("vocab_size", ZERO_AT(model.vocab_size), integer(1, kMostModelSize), "tokens of the vocabulary"),
      also(field("context_length", ZERO_AT(model.context_length), integer(1, kMostModelSize),
                 "longest sequence, tokens"),
           {"n_positions"}),
      field("layers", ZERO_AT(model.layers), integer(1, 1 << 16), "transformer blocks"),
      field("width", ZERO_AT(model.width), integer(1, kMostModelSize), "hidden size; a multiple of heads"),
      field("heads", ZERO_AT(model.heads), integer(1, kMostModelSize), "attention heads"),
      field("norm_epsilon", ZERO_AT(model.norm_epsilon), number_above(0), "added to the variance in norms")};
}

Row rope_scaling_row() {
  return only_for<Config>(
      "llama", is_llama,
      section<Config>("rope_scaling",
                      {field("factor", ZERO_AT(model.rope_scaling.factor), null_as(0.0, number_at_least(1)),
                             "Llama 3's: long waves are slowed down so many times; null: none"),
                       field("low_freq_factor", ZERO_AT(model.rope_scaling.low_freq_factor), number_above(0),
                             "waves longer than original_context / this are slowed down"),
                       field("high_freq_factor", ZERO_AT(model.rope_scaling.high_freq_factor),
                             number_above(0), "waves shorter than original_context / this stay"),
                       field("original_context", ZERO_AT(model.rope_scaling.original_context),
                             integer(1, kMostModelSize), "tokens the model was first trained with")}));
}

Rows rotation_rows() {
  const auto or_default = [](int64_t max) { return null_as<int64_t>(0, integer(1, max)); };
  return {only_for<Config>("llama", is_llama,
                           field("kv_heads", ZERO_AT(model.kv_heads), or_default(kMostModelSize),
                                 "heads of keys and values; null: as many as heads")),
          only_for<Config>("llama", is_llama,
                           field("head_width", ZERO_AT(model.head_width), or_default(kMostModelSize),
                                 "null: width / heads")),
          only_for<Config>(
              "llama, gpt_neox", has_rotation,
              field("mlp_width", ZERO_AT(model.mlp_width), or_default(kMostModelSize), "null: 4 * width")),
          only_for<Config>(
              "llama, gpt_neox", has_rotation,
              field("rope_theta", ZERO_AT(model.rope_theta), number_above(0), "base of the rotations")),
          rope_scaling_row(),
          only_for<Config>("gpt_neox", is_gpt_neox,
                           field("rotary_fraction", ZERO_AT(model.rotary_fraction), number_within(0, 1),
                                 "part of each head that is rotated")),
          only_for<Config>("gpt_neox", is_gpt_neox,
                           field("parallel_residual", ZERO_AT(model.parallel_residual), boolean(),
                                 "attention and MLP read the same input")),
          only_for<Config>(
              "gpt_neox", is_gpt_neox,
              field("tanh_gelu", ZERO_AT(model.tanh_gelu), boolean(), "GELU by its tanh approximation")),
          only_for<Config>("llama, gpt_neox", has_rotation,
                           field("tied_head", ZERO_AT(model.tied_head), nullable(boolean()),
                                 "the head is the embedding; null: it is not")),
          only_for<Config>("gpt2", is_gpt2,
                           field("dropout", ZERO_AT(model.dropout), number_below_one(),
                                 "of embeddings, attention and residuals"))};
}

}  // namespace

Row model_row() {
  const Format<int64_t> seed = null_as<int64_t>(-1, integer(0));
  Rows rows{field("from", ZERO_AT(model.from), text(),
                  "a model directory of Hugging Face's: its shape and weights are taken"),
            model_size_row()};
  for (Row& row : shape_rows()) rows.push_back(std::move(row));
  for (Row& row : rotation_rows()) rows.push_back(std::move(row));
  rows.push_back(field("seed", ZERO_AT(model.seed), seed, "of the initial weights; null: run.seed"));
  return section<Config>("model", std::move(rows));
}

Row lora_row() {
  return section<Config>(
      "lora",
      {field("rank", ZERO_AT(lora.rank), null_as<int64_t>(0, integer(1, 1 << 16)),
             "of the adapters, which alone are trained then; null: no adapters"),
       field("alpha", ZERO_AT(lora.alpha), number_above(0), "adapters count alpha / rank"),
       field("targets", ZERO_AT(lora.targets), list_of_globs(), "names of the linear layers that get one"),
       field("from", ZERO_AT(lora.from), text(), "directory of an adapter in PEFT's layout to start from"),
       off("dropout", {0.0}, "adapters see their whole input")});
}

}  // namespace zero::config

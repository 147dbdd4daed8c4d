// GPT-NeoX as transformers' GPTNeoXForCausalLM writes it.
#include "hf/architecture.h"
#include "hf/rope.h"

namespace zero::hf {
namespace {

constexpr std::string_view kNeoxPrefix = "gpt_neox.";
// Two names of the same approximation; "gelu" is exact.
constexpr std::string_view kTanhGelu = "gelu_fast";

void read_neox(ConfigReader& reader, ModelConfig& model) {
  model.vocab_size = reader.count("vocab_size", 50432);
  model.context_length = reader.count("max_position_embeddings", 2048);
  model.width = reader.count("hidden_size", 6144);
  model.layers = reader.count("num_hidden_layers", 44);
  model.heads = reader.count("num_attention_heads", 64);
  model.mlp_width = reader.count("intermediate_size", 24576);
  model.norm_epsilon = reader.positive("layer_norm_eps", 1e-5);
  model.rotary_fraction = reader.positive("rotary_pct", 0.25);
  model.parallel_residual = reader.flag("use_parallel_residual", true);
  model.tied_head = reader.flag("tie_word_embeddings", false);
  read_rope(reader, "rotary_emb_base", model);
  const std::string activation = reader.text("hidden_act", "gelu");
  model.tanh_gelu = activation != "gelu";
  reader.only("hidden_act", {"gelu", kTanhGelu, "gelu_new", "gelu_pytorch_tanh"});
  reader.only("attention_bias", {true});
}

nlohmann::ordered_json write_neox(const ModelConfig& model) {
  return {{"vocab_size", model.vocab_size},
          {"max_position_embeddings", model.context_length},
          {"hidden_size", model.width},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"intermediate_size", model.mlp_width > 0 ? model.mlp_width : 4 * model.width},
          {"layer_norm_eps", model.norm_epsilon},
          {"rotary_pct", model.rotary_fraction},
          {"rotary_emb_base", model.rope_theta},
          {"use_parallel_residual", model.parallel_residual},
          {"tie_word_embeddings", model.tied_head.value_or(false)},
          {"hidden_act", model.tanh_gelu ? kTanhGelu : "gelu"},
          {"attention_bias", true}};
}

std::string neox_hf_name(std::string_view own_name) { return std::string(own_name); }

// Older files hold masks and frequencies, and some the head beside the embedding it is.
bool ignored_in_neox(std::string_view name, const ModelConfig& model) {
  return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") ||
         (model.tied_head.value_or(false) && name == "embed_out.weight");
}

}  // namespace

const Architecture kGptNeox{.type = "gpt_neox",
                            .class_name = "GPTNeoXForCausalLM",
                            .prefix = kNeoxPrefix,
                            .read = read_neox,
                            .write = write_neox,
                            .hf_name = neox_hf_name,
                            .ignored = ignored_in_neox};

}  // namespace zero::hf

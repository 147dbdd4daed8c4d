// Llama as transformers' LlamaForCausalLM writes it.
#include <algorithm>

#include "hf/architecture.h"
#include "hf/rope.h"

namespace zero::hf {
namespace {

constexpr std::string_view kLlamaPrefix = "model.";

void read_llama(ConfigReader& reader, ModelConfig& model) {
  model.vocab_size = reader.count("vocab_size", 32000);
  model.context_length = reader.count("max_position_embeddings", 2048);
  model.width = reader.count("hidden_size", 4096);
  model.layers = reader.count("num_hidden_layers", 32);
  model.heads = reader.count("num_attention_heads", 32);
  model.kv_heads = reader.count("num_key_value_heads", model.heads);
  model.head_width = reader.count("head_dim", std::max<int64_t>(1, model.width / model.heads));
  model.mlp_width = reader.count("intermediate_size", 11008);
  model.norm_epsilon = reader.positive("rms_norm_eps", 1e-6);
  model.tied_head = reader.flag("tie_word_embeddings", false);
  read_rope(reader, "rope_theta", model);
  reader.only("hidden_act", {"silu"});
  reader.only("attention_bias", {false});
  reader.only("mlp_bias", {false});
}

nlohmann::ordered_json write_llama(const ModelConfig& model) {
  nlohmann::ordered_json json = {
      {"vocab_size", model.vocab_size},
      {"max_position_embeddings", model.context_length},
      {"hidden_size", model.width},
      {"num_hidden_layers", model.layers},
      {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.kv_heads > 0 ? model.kv_heads : model.heads},
      {"head_dim", model.head_width > 0 ? model.head_width : model.width / model.heads},
      {"intermediate_size", model.mlp_width > 0 ? model.mlp_width : 4 * model.width},
      {"rms_norm_eps", model.norm_epsilon},
      {"tie_word_embeddings", model.tied_head.value_or(false)},
      {"rope_theta", model.rope_theta},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"mlp_bias", false}};
  if (model.rope_scaling.factor > 0) json["rope_scaling"] = llama3_scaling(model.rope_scaling);
  return json;
}

std::string llama_hf_name(std::string_view own_name) { return std::string(own_name); }

// Older files hold the frequencies, and some the head beside the embedding it is.
bool ignored_in_llama(std::string_view name, const ModelConfig& model) {
  return name.ends_with(".rotary_emb.inv_freq") ||
         (model.tied_head.value_or(false) && name == "lm_head.weight");
}

}  // namespace

const Architecture kLlama{.type = "llama",
                          .class_name = "LlamaForCausalLM",
                          .prefix = kLlamaPrefix,
                          .read = read_llama,
                          .write = write_llama,
                          .hf_name = llama_hf_name,
                          .ignored = ignored_in_llama};

}  // namespace zero::hf

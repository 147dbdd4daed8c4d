// GPT-2 as transformers' GPT2LMHeadModel writes it. Linear weights are [in, out] there too.
#include "hf/architecture.h"

namespace zero::hf {
namespace {

constexpr std::string_view kGpt2Prefix = "transformer.";

void read_gpt2(ConfigReader& reader, ModelConfig& model) {
  model.vocab_size = reader.count("vocab_size", 50257);
  model.context_length = reader.count("n_positions", 1024);
  model.width = reader.count("n_embd", 768);
  model.layers = reader.count("n_layer", 12);
  model.heads = reader.count("n_head", 12);
  model.norm_epsilon = reader.positive("layer_norm_epsilon", 1e-5);
  reader.only("n_inner", {4 * model.width});
  reader.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  reader.only("scale_attn_weights", {true});
  reader.only("scale_attn_by_inverse_layer_idx", {false});
  reader.only("add_cross_attention", {false});
  reader.only("tie_word_embeddings", {true});
}

nlohmann::ordered_json write_gpt2(const ModelConfig& model) {
  return {{"vocab_size", model.vocab_size},
          {"n_positions", model.context_length},
          {"n_embd", model.width},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"resid_pdrop", model.dropout},
          {"embd_pdrop", model.dropout},
          {"attn_pdrop", model.dropout},
          {"tie_word_embeddings", true}};
}

std::string gpt2_hf_name(std::string_view own_name) {
  return std::string(kGpt2Prefix) + std::string(own_name);
}

// Older files hold the causal mask of every block, newer ones sometimes the head beside the embedding it is.
bool ignored_in_gpt2(std::string_view name, const ModelConfig&) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name == "lm_head.weight";
}

}  // namespace

const Architecture kGpt2{.type = "gpt2",
                         .class_name = "GPT2LMHeadModel",
                         .prefix = kGpt2Prefix,
                         .read = read_gpt2,
                         .write = write_gpt2,
                         .hf_name = gpt2_hf_name,
                         .ignored = ignored_in_gpt2};

}  // namespace zero::hf

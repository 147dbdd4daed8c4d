#include "zero/language_model_plan.h"

#include <algorithm>

#include "base/glob.h"
#include "zero/error.h"

namespace zero {
namespace {

// Adapters are [out, in], whatever their layer is.
std::string of_adapter(std::string how) {
  if (const size_t turned = how.find("_t"); turned != std::string::npos) how.erase(turned, 2);
  return how;
}

// A linear layer whose outputs are cut, and of its adapter what makes outputs.
void add_columns(TensorParallelPlan& plan, const std::string& layer, const std::string& how) {
  plan.push_back({layer + ".weight", how});
  plan.push_back({layer + ".bias", how});
  plan.push_back({layer + ".lora_B.weight", of_adapter(how)});
}

// One whose inputs are.
void add_rows(TensorParallelPlan& plan, const std::string& layer, const std::string& how) {
  plan.push_back({layer + ".weight", how});
  plan.push_back({layer + ".lora_A.weight", of_adapter(how)});
}

// "WORD[HEADS]"
std::string by_heads(const std::string& word, int64_t heads) {
  return word + "[" + std::to_string(heads) + "]";
}

TensorParallelPlan rules_of(const Gpt2Shape& shape, int /*ranks*/) {
  TensorParallelPlan plan{{"wte.weight", "vocab"}};
  add_columns(plan, "h.*.attn.c_attn", "fused_t[3:" + std::to_string(shape.heads) + "]");
  add_rows(plan, "h.*.attn.c_proj", by_heads("rowwise_t", shape.heads));
  add_columns(plan, "h.*.mlp.c_fc", "colwise_t");
  add_rows(plan, "h.*.mlp.c_proj", "rowwise_t");
  return plan;
}

// Queries stay with the keys and values that they read, unless all ranks have all of these.
TensorParallelPlan rules_of(const LlamaShape& shape, int ranks) {
  const std::string heads = by_heads("kv", shape.kv_heads);
  const int64_t groups = shape.kv_heads < ranks ? shape.heads : shape.kv_heads;
  TensorParallelPlan plan{{"model.embed_tokens.weight", "vocab"}, {"lm_head.weight", "vocab"}};
  add_columns(plan, "model.layers.*.self_attn.q_proj", by_heads("colwise", groups));
  add_columns(plan, "model.layers.*.self_attn.k_proj", heads);
  add_columns(plan, "model.layers.*.self_attn.v_proj", heads);
  add_rows(plan, "model.layers.*.self_attn.o_proj", by_heads("rowwise", groups));
  add_columns(plan, "model.layers.*.mlp.gate_proj", "colwise");
  add_columns(plan, "model.layers.*.mlp.up_proj", "colwise");
  add_rows(plan, "model.layers.*.mlp.down_proj", "rowwise");
  return plan;
}

// A head's query, key and value lie beside each other, so that parts of the rows are heads.
TensorParallelPlan rules_of(const GptNeoxShape& shape, int /*ranks*/) {
  TensorParallelPlan plan{{"gpt_neox.embed_in.weight", "vocab"}, {"embed_out.weight", "vocab"}};
  add_columns(plan, "gpt_neox.layers.*.attention.query_key_value", by_heads("colwise", shape.heads));
  add_rows(plan, "gpt_neox.layers.*.attention.dense", by_heads("rowwise", shape.heads));
  add_columns(plan, "gpt_neox.layers.*.mlp.dense_h_to_4h", "colwise");
  add_rows(plan, "gpt_neox.layers.*.mlp.dense_4h_to_h", "rowwise");
  return plan;
}

int64_t heads_of(const ModelShape& shape) {
  return std::visit([](const auto& s) { return s.heads; }, shape);
}

void check_heads(const ModelShape& shape, int ranks) {
  const int64_t heads = heads_of(shape);
  require(heads >= ranks, ErrorKind::Config, "tensor parallelism",
          std::to_string(ranks) + " ranks cannot share " + std::to_string(heads) + " heads",
          "at most " + std::to_string(heads) + " ranks could");
}

}  // namespace

TensorParallelPlan tensor_parallel_plan(const LanguageModel& model, const ModelShape& shape, int ranks,
                                        const LanguageModelPlanOptions& options) {
  check_heads(shape, ranks);
  TensorParallelPlan plan = std::visit([ranks](const auto& s) { return rules_of(s, ranks); }, shape);
  const auto parameters = model.named_parameters();
  // Untied heads, biases and adapters are there or not.
  std::erase_if(plan, [&](const TensorParallelRule& rule) {
    if (!options.cuts_vocabulary && rule.how == "vocab") return true;
    return std::none_of(parameters.begin(), parameters.end(),
                        [&](const auto& item) { return glob_matches(rule.pattern, item.key()); });
  });
  return plan;
}

}  // namespace zero

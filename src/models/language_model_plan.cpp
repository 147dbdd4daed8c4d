#include "zero/language_model_plan.h"

#include <algorithm>

#include "base/glob.h"
#include "zero/error.h"

namespace zero {
namespace {

// A linear layer whose outputs are cut, and of its adapter what makes outputs.
void add_columns(TensorParallelPlan& plan, const std::string& layer, const std::string& how) {
  std::string of_adapter = how;
  if (const size_t turned = how.find("_t"); turned != std::string::npos) of_adapter.erase(turned, 2);
  plan.push_back({layer + ".weight", how});
  plan.push_back({layer + ".bias", how});
  plan.push_back({layer + ".lora_B.weight", of_adapter});
}

// One whose inputs are.
void add_rows(TensorParallelPlan& plan, const std::string& layer, const std::string& how) {
  plan.push_back({layer + ".weight", how});
  plan.push_back({layer + ".lora_A.weight", "rowwise"});
}

TensorParallelPlan rules_of(const Gpt2Shape&) {
  TensorParallelPlan plan{{"wte.weight", "vocab"}};
  add_columns(plan, "h.*.attn.c_attn", "fused_t[3]");
  add_rows(plan, "h.*.attn.c_proj", "rowwise_t");
  add_columns(plan, "h.*.mlp.c_fc", "colwise_t");
  add_rows(plan, "h.*.mlp.c_proj", "rowwise_t");
  return plan;
}

TensorParallelPlan rules_of(const LlamaShape& shape) {
  const std::string heads = "kv[" + std::to_string(shape.kv_heads) + "]";
  TensorParallelPlan plan{{"model.embed_tokens.weight", "vocab"}, {"lm_head.weight", "vocab"}};
  add_columns(plan, "model.layers.*.self_attn.q_proj", "colwise");
  add_columns(plan, "model.layers.*.self_attn.k_proj", heads);
  add_columns(plan, "model.layers.*.self_attn.v_proj", heads);
  add_rows(plan, "model.layers.*.self_attn.o_proj", "rowwise");
  add_columns(plan, "model.layers.*.mlp.gate_proj", "colwise");
  add_columns(plan, "model.layers.*.mlp.up_proj", "colwise");
  add_rows(plan, "model.layers.*.mlp.down_proj", "rowwise");
  return plan;
}

// A head's query, key and value lie beside each other, so that parts of the rows are heads.
TensorParallelPlan rules_of(const GptNeoxShape&) {
  TensorParallelPlan plan{{"gpt_neox.embed_in.weight", "vocab"}, {"embed_out.weight", "vocab"}};
  add_columns(plan, "gpt_neox.layers.*.attention.query_key_value", "colwise");
  add_rows(plan, "gpt_neox.layers.*.attention.dense", "rowwise");
  add_columns(plan, "gpt_neox.layers.*.mlp.dense_h_to_4h", "colwise");
  add_rows(plan, "gpt_neox.layers.*.mlp.dense_4h_to_h", "rowwise");
  return plan;
}

int64_t heads_of(const ModelShape& shape) {
  return std::visit([](const auto& s) { return s.heads; }, shape);
}

void check_heads(const ModelShape& shape, int ranks) {
  const int64_t heads = heads_of(shape);
  std::string fitting;
  for (int64_t n = 1; n <= heads; ++n)
    if (heads % n == 0) fitting += (fitting.empty() ? "" : ", ") + std::to_string(n);
  require(heads % ranks == 0, ErrorKind::Config, "tensor parallelism",
          std::to_string(ranks) + " ranks cannot share " + std::to_string(heads) + " heads",
          fitting + " ranks could");
}

}  // namespace

TensorParallelPlan tensor_parallel_plan(const LanguageModel& model, const ModelShape& shape, int ranks,
                                        const LanguageModelPlanOptions& options) {
  check_heads(shape, ranks);
  TensorParallelPlan plan = std::visit([](const auto& s) { return rules_of(s); }, shape);
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

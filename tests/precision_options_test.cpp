// What configurations say of types, what follows for the engine and the plan, and the table of rules.
#include <gtest/gtest.h>

#include "plan/config_options.h"
#include "support/config_text.h"
#include "support/expect_error.h"
#include "zero/parameter_summary.h"
#include "zero/plan.h"

namespace zero {
namespace {

using test::error_of;
using test::parse;

EngineOptions options_of_text(const std::string& text) {
  return options_from_config(resolve(parse(R"({"train_micro_batch_size_per_gpu": 1, )" + text + "}"), 1), 1);
}

TEST(PrecisionOptions, ReachTheEngine) {
  const EngineOptions options = options_of_text(
      R"("run": {"seed": 5}, "bf16": {"enabled": true},
         "precision": {"fp32": ["*norm*", "router.*"], "stochastic_rounding": true})");
  EXPECT_TRUE(options.stochastic_rounding);
  EXPECT_EQ(options.rounding_seed, 5u);
  EXPECT_EQ(options.fp32_parameters, (std::vector<std::string>{"*norm*", "router.*"}));
  EXPECT_FALSE(options.autocast);
  EXPECT_TRUE(options_of_text(R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})")
                  .stochastic_rounding);
  const EngineOptions cast = options_of_text(R"("torch_autocast": {"enabled": true, "dtype": "bfloat16",
      "lower_precision_safe_modules": ["torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d",
                                       "torch.nn.Conv3d"]})");
  EXPECT_EQ(*cast.autocast, Dtype::bf16);
  EXPECT_EQ(*cast.dtype, Dtype::f32);
  EXPECT_FALSE(options_of_text(R"("torch_autocast": {"enabled": false})").autocast);
}

TEST(PrecisionOptions, WhatDoesNotGoTogetherIsNamed) {
  const auto refused = [](const std::string& text, const std::string& expected) {
    EXPECT_NE(error_of(text).find(expected), std::string::npos) << error_of(text);
  };
  refused(R"({"precision": {"stochastic_rounding": true}})", "precision.stochastic_rounding: expected false");
  refused(R"({"precision": {"fp32": ["*norm*"]}})", "precision.fp32: expected [] where all parameters");
  refused(R"({"bf16": {"enabled": true}, "torch_autocast": {"enabled": true}})",
          "torch_autocast.enabled: expected false with bf16.enabled");
  refused(R"({"torch_autocast": {"enabled": true, "lower_precision_safe_modules": ["torch.nn.Linear"]}})",
          "torch_autocast.lower_precision_safe_modules");
  refused(R"({"torch_autocast": {"dtype": "float16"}})", "torch_autocast.dtype");
}

ModuleSpec two_blocks() {
  ModuleSpec root;
  root.parameters = {{.name = "embedding.weight", .shape = {100, 8}}};
  ModuleSpec list{.name = "h", .is_list = true};
  for (int i = 0; i < 3; ++i) {
    const std::string name = "h." + std::to_string(i);
    list.children.push_back({.name = name,
                             .parameters = {{.name = name + ".norm.weight", .shape = {8}},
                                            {.name = name + ".up.weight", .shape = {16, 8}},
                                            {.name = name + ".up.bias", .shape = {16}, .trainable = i < 2}}});
  }
  root.children.push_back(list);
  return root;
}

TEST(PrecisionOptions, ThePlanCountsNoMasterWhereThereIsNone) {
  EngineOptions options{.stage = 1, .dtype = Dtype::bf16};
  const Plan split = make_plan(two_blocks(), options, {.ranks = 2});
  options.stochastic_rounding = true;
  const Plan none = make_plan(two_blocks(), options, {.ranks = 2});
  EXPECT_GT(split.rank.master_bytes, 0);
  EXPECT_EQ(none.rank.master_bytes, 0);
  EXPECT_EQ(none.rank.state_bytes(), split.rank.state_bytes() - split.rank.master_bytes);
  options.fp32_parameters = {"*norm*"};
  const Plan mixed = make_plan(two_blocks(), options, {.ranks = 2});
  EXPECT_EQ(mixed.rank.master_bytes, 0);
  EXPECT_EQ(mixed.communication_dtype, Dtype::f32) << "nothing is lost of what is fp32";
  options.stochastic_rounding = false;
  const Plan both = make_plan(two_blocks(), options, {.ranks = 2});
  EXPECT_EQ(both.rank.master_bytes % 2, 0);
  EXPECT_LT(both.rank.master_bytes, split.rank.master_bytes + 1);
}

TEST(ParameterSummary, CollapsesWhatIsAlike) {
  EngineOptions options{.stage = 1, .dtype = Dtype::bf16};
  options.groups = {{.pattern = "*.bias", .weight_decay = 0},
                    {.pattern = "embedding*", .lr_scale = 0.5, .elementwise = true}};
  const Plan plan = make_plan(two_blocks(), options, {.ranks = 2});
  const auto summary =
      summarise_parameters(plan, options, Muon{.weight_decay = 0.1, .adamw_lr_scale = 0.1}, 0.02);
  const auto line = [&](const std::string& pattern, const std::string& rule) {
    for (const ParameterSummary& one : summary)
      if (one.pattern == pattern && one.rule == rule) return one;
    ADD_FAILURE() << pattern << " " << rule << " in\n" << to_text(summary);
    return ParameterSummary();
  };
  EXPECT_EQ(summary.size(), 5u) << to_text(summary);
  const ParameterSummary matrix = line("h.*.up.weight", "Muon (orthogonalised)");
  EXPECT_EQ(matrix.count, 3);
  EXPECT_EQ(matrix.numel, 3 * 128);
  EXPECT_EQ(matrix.lr, 0.02);
  EXPECT_EQ(matrix.master, "16 bits more");
  const ParameterSummary bias = line("h.*.up.bias", "Muon (AdamW)");
  EXPECT_EQ(bias.count, 2);
  EXPECT_EQ(bias.group, "*.bias");
  EXPECT_EQ(bias.weight_decay, 0);
  EXPECT_DOUBLE_EQ(bias.lr, 0.002);
  EXPECT_EQ(line("h.2.up.bias", "frozen").master, "");
  EXPECT_DOUBLE_EQ(line("embedding.weight", "Muon (AdamW)").lr, 0.001);
  EXPECT_NE(to_text(summary).find("h.*.norm.weight"), std::string::npos);
  options.groups = {{.pattern = "nobody*"}};
  EXPECT_ERROR(summarise_parameters(plan, options, AdamW{}, 1), Config,
               "parameter group \"nobody*\": matches no parameter");
}

TEST(ParameterTable, SaysOnceWhatAllShareWhereItIsTooWide) {
  const std::vector<ParameterSummary> alike = {
      {.pattern = "model.layers.*.self_attention.rotary.query_projection.weight",
       .count = 20,
       .numel = 1000,
       .rule = "AdamW",
       .lr = 0.001,
       .weight_decay = 0.1,
       .master = "itself"},
      {.pattern = "model.norm.weight",
       .count = 1,
       .numel = 64,
       .rule = "AdamW",
       .lr = 0.001,
       .weight_decay = 0.1,
       .master = "itself"}};
  EXPECT_EQ(to_text(alike, 300), to_text(alike));
  EXPECT_EQ(to_text(alike, 80),
            "  all: type fp32, master itself, rule AdamW, lr 0.001, decay 0.1\n"
            "  parameters                                                    count  elements\n"
            "  model.layers.*.self_attention.rotary.query_projection.weight     20      1000\n"
            "  model.norm.weight                                                 1        64\n");
  EXPECT_EQ(to_text(alike, 50),
            "  all: type fp32, master itself, rule AdamW,\n"
            "      lr 0.001, decay 0.1\n"
            "  parameters                       count  elements\n"
            "  model.layers.*...jection.weight     20      1000\n"
            "  model.norm.weight                    1        64\n");
  EXPECT_EQ(to_text({}, 20).find("  parameters"), 0u);
}

}  // namespace
}  // namespace zero

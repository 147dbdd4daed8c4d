// The shapes of all models that a configuration can name: published counts, module trees, what is trained.
#include "zero/model_shape.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <ctime>
#include <set>

#include "support/expect_error.h"
#include "support/module_tree.h"
#include "support/sanitized.h"
#include "train/process_memory.h"
#include "zero/language_model.h"
#include "zero/model_spec.h"

namespace zero {
namespace {

Config model_config(const std::string& text) {
  return parse_config("{\"train_batch_size\": 1, " + text + "}", "f");
}

struct Totals {
  int64_t numel = 0, trained = 0;
  std::set<std::string> names;
};

void add_up(const ModuleSpec& module, Totals& totals) {
  for (const ParameterSpec& parameter : module.parameters) {
    EXPECT_TRUE(totals.names.insert(parameter.name).second) << parameter.name;
    EXPECT_TRUE(parameter.name.starts_with(module.name + ".")) << parameter.name << " in " << module.name;
    totals.numel += parameter.numel();
    if (parameter.trainable) totals.trained += parameter.numel();
  }
  for (const ModuleSpec& child : module.children) add_up(child, totals);
}

Totals totals_of(const Config& config) {
  Totals totals;
  add_up(trained_spec(config), totals);
  return totals;
}

TEST(ModelShape, PublishedCounts) {
  const std::pair<const char*, int64_t> published[] = {
      {"gpt2", 124439808}, {"tinyllama-1.1b", 1100048384}, {"gpt-neox-20b", 20554567680}};
  for (const auto& [name, count] : published) {
    const Config config = model_config("\"model\": {\"size\": \"" + std::string(name) + "\"}");
    EXPECT_EQ(totals_of(config).numel, count) << name;
    EXPECT_EQ(totals_of(config).trained, count) << name;
  }
}

TEST(ModelShape, ATiedHeadIsNoParameter) {
  for (const char* type : {"llama", "gpt_neox"}) {
    const std::string shape =
        std::string("\"model\": {\"type\": \"") + type +
        R"(", "vocab_size": 10, "layers": 3, "width": 24, "heads": 3, "rotary_fraction": 0.5)";
    const auto count = [&](const std::string& more) {
      std::string text = shape + more + "}";
      if (std::string(type) == "llama") text.replace(text.find(", \"rotary"), 24, "");
      return totals_of(model_config(text)).numel;
    };
    EXPECT_EQ(count("") - count(R"(, "tied_head": true)"), 10 * 24) << type;
  }
}

TEST(ModelShape, IsTheModelSection) {
  const Config gpt2 = model_config(
      R"("model": {"vocab_size": 70, "context_length": 9, "layers": 3, "width": 12, "heads": 4, "dropout": 0.25})");
  EXPECT_EQ(
      std::get<Gpt2Shape>(shape_of(gpt2)),
      (Gpt2Shape{
          .vocab_size = 70, .context_length = 9, .layers = 3, .width = 12, .heads = 4, .dropout = 0.25}));
  const Config llama = model_config(R"("model": {"size": "tinyllama-1.1b", "layers": 1})");
  EXPECT_EQ(std::get<LlamaShape>(shape_of(llama)), (LlamaShape{.layers = 1}));
  const Config neox = model_config(R"("model": {"size": "gpt-neox-20b", "tanh_gelu": false})");
  EXPECT_EQ(std::get<GptNeoxShape>(shape_of(neox)), GptNeoxShape{});
}

TEST(ModelShape, ImpossibleOnesAreErrors) {
  EXPECT_ERROR(model_config(R"("model": {"type": "llama", "heads": 3, "kv_heads": 2})"), Config,
               "model.kv_heads: expected a divisor of model.heads 3, got 2");
  EXPECT_ERROR(model_config(R"("model": {"type": "llama", "width": 9, "heads": 3})"), Config,
               "an even number");
  EXPECT_ERROR(model_config(R"("model": {"kv_heads": 2})"), Config, "model.kv_heads: expected a known key");
  EXPECT_ERROR(
      shape_of(model_config(R"("model": {"type": "gpt_neox", "width": 10, "heads": 2})")), Config,
      "rotary_fraction: expected an even number of rotated elements in a head, at least 2, got 1 of 5");
}

const char* const kLlama =
    R"("model": {"type": "llama", "vocab_size": 10, "layers": 2, "width": 8, "heads": 2, "kv_heads": 1})";

TEST(TrainedSpec, PatternsSayWhatIsTrained) {
  const auto trained = [](const std::string& more) { return totals_of(model_config(kLlama + more)).trained; };
  EXPECT_EQ(trained(R"(, "trainable": ["*.norm.weight"])"), 8);
  EXPECT_EQ(trained(R"(, "trainable": ["*layernorm*"])"), 4 * 8);
  EXPECT_EQ(trained(R"(, "trainable": ["*layernorm*"], "frozen": ["model.layers.1.*"])"), 2 * 8);
  EXPECT_ERROR(trained(R"(, "trainable": ["head.*"])"), Config, "trainable: expected a pattern");
  EXPECT_ERROR(trained(R"(, "trainable": ["lm_head.*"], "frozen": ["lm_*"])"), Config, "something to train");
}

TEST(TrainedSpec, AdaptersAloneAreTrained) {
  const auto with = [](const std::string& lora) {
    return totals_of(model_config(std::string(kLlama) + ", \"lora\": {" + lora + "}"));
  };
  const Totals all = with(R"("rank": 3, "targets": ["*.q_proj", "*.down_proj"])");
  const Totals none = totals_of(model_config(kLlama));
  // Two blocks; q_proj is 8 to 8, down_proj 32 to 8.
  EXPECT_EQ(all.trained, 2 * 3 * (8 + 8 + 32 + 8));
  EXPECT_EQ(all.numel, none.numel + all.trained);
  EXPECT_TRUE(all.names.contains("model.layers.1.mlp.down_proj.lora_B.weight"));
  EXPECT_ERROR(with(R"("rank": 3, "targets": ["*.embed_tokens"])"), Config,
               "lora.targets: expected a pattern of");
  EXPECT_ERROR(with(R"("rank": 3)"), Config, "lora.targets: expected patterns of linear layers, got none");
  EXPECT_ERROR(with(R"("targets": ["*"])"), Config, "none without lora.rank");
  EXPECT_ERROR(with(R"("rank": 1, "targets": ["*"], "dropout": 0.1)"), Unsupported, "lora.dropout");
  EXPECT_ERROR(with(R"("rank": 1, "targets": ["*"]}, "frozen": ["a"], "run": {)"), Config,
               "null with frozen or trainable");
}

TEST(TrainedSpec, IsTheTreeOfTheModuleBuiltEagerly) {
  for (const std::string section :
       {R"("vocab_size": 10, "context_length": 6, "layers": 2, "width": 8, "heads": 2)",
        R"("type": "llama", "vocab_size": 10, "layers": 2, "width": 8, "heads": 2, "kv_heads": 1)",
        R"("type": "gpt_neox", "vocab_size": 10, "layers": 2, "width": 16, "heads": 2)"}) {
    const Config config =
        model_config("\"model\": {" + section + R"(}, "lora": {"rank": 2, "targets": ["*[qc]*"]})");
    torch::manual_seed(3);
    const auto drawn = torch::randn({4});
    torch::manual_seed(3);
    const ModuleSpec model = model_spec(shape_of(config)), trained = trained_spec(config);
    EXPECT_TRUE(torch::equal(torch::randn({4}), drawn)) << "no random numbers are drawn";
    const auto module = make_language_model(shape_of(config));
    testing::expect_equal(model, testing::spec_of(*module, ""));
    EXPECT_GT(add_adapters(*module, config.lora), 1);
    testing::expect_equal(trained, testing::spec_of(*module, ""));
    int64_t numel = 0;
    for (const auto& parameter : module->parameters()) numel += parameter.numel();
    EXPECT_EQ(numel_of(trained), numel);
  }
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// GPT-3's shape, 350 GB in bf16, and a trillion parameters, as quickly as small ones.
TEST(TrainedSpec, SizeCostsNothing) {
  const double before_s = processor_seconds();
  const int64_t before_bytes = training::process_memory().peak_resident_bytes;
  const Config gpt3 = model_config(
      R"("model": {"vocab_size": 50257, "context_length": 2048, "layers": 96, "width": 12288, "heads": 96})");
  EXPECT_EQ(numel_of(trained_spec(gpt3)), 174'604'259'328);
  EXPECT_LT(processor_seconds() - before_s, 1);

  const Gpt2Shape shape{
      .vocab_size = 51200, .context_length = 2048, .layers = 128, .width = 25600, .heads = 160};
  const ModuleSpec spec = model_spec(shape);
  const Plan plan = make_plan(spec, {.stage = 3, .dtype = Dtype::bf16, .budget_bytes = 0}, {.ranks = 1024},
                              {.splits_master = false});
  const auto parameters = static_cast<double>(numel_of(spec));
  EXPECT_NEAR(static_cast<double>(plan.rank.state_bytes()), 18 * parameters / 1024,
              1e-4 * 18 * parameters / 1024);
  EXPECT_EQ(plan.rank.traffic_elements() - plan.rank.padding_elements, 3 * numel_of(spec));
  if (!testing::kIsSanitized) {
    EXPECT_LT(training::process_memory().peak_resident_bytes - before_bytes, 200 << 20);
  }
}

}  // namespace
}  // namespace zero

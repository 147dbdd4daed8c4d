#include "fit_plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/hf_model.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

using Json = nlohmann::ordered_json;

struct ModelSize {
  const char* name;
  const char* type;
  int64_t layers, width, heads;
  double lr;
};

constexpr std::array<ModelSize, 3> kSizes = {{
    {"tiny", "llama", 4, 192, 3, 4e-3},
    {"small", "llama", 6, 384, 6, 2e-3},
    {"gpt2", "gpt2", 12, 768, 12, 6e-4},
}};
constexpr double kFineTuningLr = 5e-5;
constexpr int64_t kSamples = 4;       // of a step, at least one a rank
constexpr double kSmallTokens = 6e7;  // from so many of tiny's on, small does better

const ModelSize* size_of(const std::string& name) {
  const auto found = std::ranges::find(kSizes, name, [](const ModelSize& size) { return size.name; });
  return found == kSizes.end() ? nullptr : &*found;
}

Json model_json(const std::string& name, const FitText& text) {
  const ModelSize* size = size_of(name);
  if (!size) return {{"from", name}};
  Json model = {
      {"type", size->type},     {"vocab_size", text.vocab_size}, {"context_length", text.sequence_length},
      {"layers", size->layers}, {"width", size->width},          {"heads", size->heads}};
  if (model["type"] == "llama") {
    model["mlp_width"] = size->width * 8 / 3 / 32 * 32;
    model["tied_head"] = true;
  }
  return model;
}

void check_memory(const FitRequest& request, const Config& config) {
  if (request.memory_bytes == 0) return;
  const ConfigPlan plan = plan_from_config(config, trained_spec(config), request.ranks, request.memory_bytes);
  const int64_t needed = plan.resident_bytes(static_cast<size_t>(plan.chosen_stage));
  require(needed <= request.memory_bytes, ErrorKind::Config, "--memory",
          "a rank needs " + std::to_string(needed) + " bytes, and may have " +
              std::to_string(request.memory_bytes),
          "give more memory, more ranks or a smaller --model");
}

}  // namespace

void check_fit_model(const std::string& model) {
  require(model.empty() || size_of(model) != nullptr || is_hf_directory(model), ErrorKind::Config, "--model",
          "expected tiny, small, gpt2 or a model directory, got \"" + model + "\"");
}

Config fit_config(const FitRequest& request, const std::string& size, const FitText& text, int64_t steps) {
  const ModelSize* chosen = size_of(size);
  const int64_t samples = (kSamples + request.ranks - 1) / request.ranks * request.ranks;
  const Json json = {
      {"train_batch_size", samples},
      {"gradient_accumulation_steps", 1},
      {"gradient_clipping", 1.0},
      {"bf16", {{"enabled", true}}},
      {"zero_optimization", {{"stage", 3}}},
      {"optimizer",
       {{"type", "AdamW"},
        {"params",
         {{"lr", chosen ? chosen->lr : kFineTuningLr},
          {"betas", {0.9, 0.95}},
          {"eps", 1e-8},
          {"weight_decay", 0.1}}}}},
      {"scheduler", {{"type", "Cosine"}, {"params", {{"warmup_steps", steps / 30}}}}},
      {"model", model_json(size, text)},
      {"data",
       {{"train", text.train},
        {"eval", text.held_out},
        {"tokenizer", text.tokenizer},
        {"sequence_length", text.sequence_length}}},
      {"checkpoint", {{"keep_last", 1}}},
      {"logging", {{"print_interval_steps", std::max<int64_t>(1, steps / 20)}}},
      {"run", {{"directory", request.out}, {"steps", steps}, {"seed", 1}, {"eval_batches", 16}}}};
  const Config config = resolve(adopt_model(parse_config(json.dump(2), "zero fit")), request.ranks);
  check_memory(request, config);
  return config;
}

std::string suitable_model(double tokens) { return tokens < kSmallTokens ? "tiny" : "small"; }

}  // namespace zero::tool

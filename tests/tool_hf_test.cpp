// The `zero` program on model directories of Hugging Face's.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "hf/model_directory.h"
#include "support/program.h"
#include "support/safetensors_files.h"
#include "support/temporary_directory.h"
#include "zero/config.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Program;
using testing::ProgramOptions;
using testing::ProgramResult;

constexpr const char* kFineTuning = R"({
  "train_batch_size": 4,
  "zero_optimization": {"stage": 3},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
  "model": {"from": "model"},
  "data": {"train": "train.tokens", "eval": "eval.tokens", "tokenizer": "model", "sequence_length": 12},
  "parallel": {"timeout_s": 30, "threads_per_rank": 1},
  "run": {"directory": "run", "steps": 2, "seed": 1},
})";

constexpr const char* kLlamaSection =
    R"({"type": "llama", "vocab_size": 2000, "context_length": 16, "layers": 2,
                                          "width": 16, "heads": 2, "kv_heads": 1, "mlp_width": 24})";

// Numbers that look random enough, around 0 or, for norms, 1.
std::vector<float> some_values(const std::string& name, int64_t numel) {
  std::vector<float> values;
  uint32_t state = 1;
  for (const char letter : name) state = state * 31 + static_cast<unsigned char>(letter);
  for (int64_t i = 0; i < numel; ++i) {
    state = state * 1664525 + 1013904223;
    values.push_back(static_cast<float>(state >> 8) * 0x1p-27f - 0x1p-4f +
                     (name.find("norm") != name.npos ? 1 : 0));
  }
  return values;
}

// The parameters of that section's model.
std::map<std::string, std::vector<int64_t>> llama_shapes() {
  std::map<std::string, std::vector<int64_t>> shapes{
      {"model.embed_tokens.weight", {2000, 16}}, {"model.norm.weight", {16}}, {"lm_head.weight", {2000, 16}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      shapes[layer + norm + ".weight"] = {16};
    for (const char* keys : {"k", "v"}) shapes[layer + "self_attn." + keys + "_proj.weight"] = {8, 16};
    for (const char* queries : {"q", "o"}) shapes[layer + "self_attn." + queries + "_proj.weight"] = {16, 16};
    for (const char* up : {"gate", "up"}) shapes[layer + "mlp." + up + "_proj.weight"] = {24, 16};
    shapes[layer + "mlp.down_proj.weight"] = {16, 24};
  }
  return shapes;
}

class ToolHf : public ::testing::Test {
 protected:
  ToolHf() {
    const Config config =
        parse_config("{\"train_batch_size\": 1, \"model\": " + std::string(kLlamaSection) + "}");
    for (const auto& [name, shape] : llama_shapes()) {
      int64_t numel = 1;
      for (const int64_t size : shape) numel *= size;
      tensors_.push_back(
          testing::file_tensor(hf::hf_name(config.model, name), Dtype::f32, shape, some_values(name, numel)));
    }
    folder_.write("model/config.json", hf::config_text(config.model, Dtype::f32));
    folder_.write("model/model.safetensors", testing::safetensors_bytes(tensors_));
    fs::copy_file(fs::path(ZERO_TEST_DATA) / "golden/tokenizer/tiny.json",
                  folder_.path() / "model/tokenizer.json");
    std::string text;
    for (int i = 0; i < 200; ++i) text += "Line " + std::to_string(i) + ": the clocks were striking.\n";
    folder_.write("text.txt", text);
    folder_.write("train.json", kFineTuning);
    good({"tokenize", "text.txt", "--tokenizer", "model", "--out", "train.tokens", "--held-out",
          "eval.tokens", "--held-out-fraction", "0.1"});
  }

  ProgramResult zero(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), ZERO_TOOL);
    ProgramOptions options;
    options.directory = folder_.path();
    return Program(arguments, options).wait();
  }
  std::string good(std::vector<std::string> arguments) const {
    const ProgramResult result = zero(std::move(arguments));
    EXPECT_EQ(result.exit, 0) << result.all();
    return result.output;
  }
  void bad(std::vector<std::string> arguments, const std::string& part) const {
    const ProgramResult result = zero(std::move(arguments));
    EXPECT_NE(result.exit, 0);
    EXPECT_NE(result.error.find(part), std::string::npos) << result.all();
  }

  testing::TemporaryDirectory folder_;
  std::vector<testing::FileTensor> tensors_;
};

TEST_F(ToolHf, PlansTrainsEvaluatesAndGenerates) {
  const json plan = json::parse(good({"plan", "train.json", "--json"}));
  EXPECT_EQ(plan.at("parameters"),
            2 * 2000 * 16 + 2 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16) + 16);

  const json before =
      json::parse(good({"eval", "model", "--data", "eval.tokens", "--sequence-length", "12", "--json"}));
  EXPECT_NEAR(before.at("loss").get<double>(), std::log(2000), 0.3);
  const std::string text =
      good({"generate", "model", "--prompt", "Line 7", "--tokens", "30", "--temperature", "0"});
  EXPECT_TRUE(text.starts_with("Line 7")) << text;

  good({"train", "train.json", "--ranks", "2", "--set", "optimizer.params.lr=0"});
  const json after = json::parse(good({"eval", "run", "--data", "eval.tokens", "--json"}));
  EXPECT_NEAR(after.at("loss").get<double>(), before.at("loss").get<double>(), 1e-5);
  EXPECT_EQ(good({"generate", "run", "--prompt", "Line 7", "--tokens", "30", "--temperature", "0"}), text);
  // The same on two ranks.
  for (const auto& [model, budget] : {std::pair{"model", "all"}, std::pair{"run", "0"}}) {
    EXPECT_EQ(good({"generate", model, "--prompt", "Line 7", "--tokens", "30", "--temperature", "0",
                    "--ranks", "2", "--budget", budget}),
              text);
    const json two = json::parse(good({"eval", model, "--data", "eval.tokens", "--sequence-length", "12",
                                       "--ranks", "2", "--budget", budget, "--json"}));
    EXPECT_NEAR(two.at("loss").get<double>(), before.at("loss").get<double>(), 1e-5);
    EXPECT_EQ(two.at("tokens"), before.at("tokens"));
  }
  // And out again: a directory like the one it came from.
  good({"consolidate", "run", "out"});
  const json again =
      json::parse(good({"eval", "out", "--data", "eval.tokens", "--sequence-length", "12", "--json"}));
  EXPECT_NEAR(again.at("loss").get<double>(), before.at("loss").get<double>(), 1e-6);
}

TEST_F(ToolHf, GenerationEndsAtAnyEndToken) {
  const std::vector<std::string> generate = {"generate", "model", "--prompt",      "Line 7",
                                             "--tokens", "5",     "--temperature", "0"};
  EXPECT_NE(good(generate), "Line 7\n");
  // Whichever token comes first is one of these, and hardly the first of them.
  std::vector<int64_t> tokens(2000);
  std::iota(tokens.begin(), tokens.end(), 0);
  folder_.write("model/generation_config.json", json{{"eos_token_id", tokens}}.dump());
  EXPECT_EQ(good(generate), "Line 7\n");
}

TEST_F(ToolHf, FineTunesAdapters) {
  const std::string lora = "lora={\"rank\": 4, \"alpha\": 8, \"targets\": [\"*.q_proj\", \"*.v_proj\"]}";
  const json plan = json::parse(good({"plan", "train.json", "--json", "--set", lora}));
  EXPECT_EQ(plan.at("stages")[0].at("optimizer_bytes_per_rank").get<int64_t>() % 8, 0);
  good({"train", "train.json", "--set", lora});
  const json config = json::parse(testing::read_bytes(folder_.path() / "run/adapter/adapter_config.json"));
  EXPECT_EQ(config.at("base_model_name_or_path"), (folder_.path() / "model").string())
      << "the same from every directory";
  EXPECT_EQ(config.at("target_modules").size(), 4u);
  EXPECT_TRUE(fs::exists(folder_.path() / "run/adapter/adapter_model.safetensors"));
  good({"eval", "run", "--data", "eval.tokens"});
  bad({"consolidate", "run", "out"}, "low-rank adapters");
  EXPECT_FALSE(fs::exists(folder_.path() / "out"));
  // A model of its own, which says what the adapted one does.
  good({"consolidate", "run", "out", "--merge-adapters"});
  const auto loss_of = [&](const char* model) {
    return json::parse(good({"eval", model, "--data", "eval.tokens", "--sequence-length", "12", "--json"}))
        .at("loss")
        .get<double>();
  };
  EXPECT_NEAR(loss_of("out"), loss_of("run"), 1e-6);
  EXPECT_GT(std::abs(loss_of("out") - loss_of("model")), 1e-5);
  // The same run without the frozen parameters in its checkpoints, which then say where those are.
  good({"train", "train.json", "--set", lora, "--run-dir", "part", "--trainable-only"});
  EXPECT_EQ(loss_of("part"), loss_of("run"));
  const auto tensors_of = [&](const char* run) { return good({"inspect", run, "--tensors", "model/*"}); };
  EXPECT_NE(tensors_of("run").find("embed_tokens"), std::string::npos);
  EXPECT_EQ(tensors_of("part").find("embed_tokens"), std::string::npos);
  EXPECT_NE(tensors_of("part").find("lora_A"), std::string::npos);
}

TEST_F(ToolHf, SaysWhatIsWrong) {
  bad({"train", "train.json", "--set", "model.layers=3"}, "model.layers is 2 there and 3 here");
  bad({"eval", "model", "--data", "eval.tokens", "--sequence-length", "17"}, "--sequence-length");
  bad({"generate", "model", "--prompt", "a", "--ranks", "2", "--budget", "much"}, "--budget");
  for (testing::FileTensor& tensor : tensors_) {
    if (tensor.tensor.name == "lm_head.weight") tensor.tensor.name = "head.weight";
    if (tensor.tensor.name == "model.embed_tokens.weight") tensor.tensor.name = "x\n";
  }
  folder_.write("model/model.safetensors", testing::safetensors_bytes(tensors_));
  const std::string all =
      "missing: model.embed_tokens.weight, lm_head.weight; not the model's: \"head.weight\", \"x\\n\"";
  bad({"train", "train.json", "--ranks", "2"}, all);
  EXPECT_FALSE(fs::exists(folder_.path() / "run"));
  bad({"eval", "model", "--data", "eval.tokens"}, all);
  bad({"generate", "model", "--prompt", "a"}, all);
  fs::remove(folder_.path() / "model/model.safetensors");
  bad({"generate", "model", "--prompt", "a"}, "it holds neither model.safetensors nor");
}

}  // namespace
}  // namespace zero

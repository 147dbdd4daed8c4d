// config.json to a model's shape and back, and the tensors of a directory matched with a model's parameters.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hf/model_directory.h"
#include "support/expect_error.h"
#include "support/safetensors_files.h"
#include "support/temporary_directory.h"

namespace zero::hf {
namespace {

using testing::file_tensor;
using testing::safetensors_bytes;
using testing::TemporaryDirectory;
using Json = nlohmann::json;

// As transformers writes it, shortened.
const Json kGpt2Config = {{"architectures", {"GPT2LMHeadModel"}},
                          {"model_type", "gpt2"},
                          {"activation_function", "gelu_new"},
                          {"attn_pdrop", 0.1},
                          {"eos_token_id", 60},
                          {"layer_norm_epsilon", 1e-5},
                          {"n_ctx", 16},
                          {"n_embd", 24},
                          {"n_head", 3},
                          {"n_inner", nullptr},
                          {"n_layer", 2},
                          {"n_positions", 16},
                          {"vocab_size", 61}};

ModelConfig read(const Json& config, const ModelConfig& others = {}) {
  const TemporaryDirectory directory;
  directory.write("config.json", config.dump());
  return read_model_config(directory.path(), others);
}

Json with(Json config, const std::string& key, const Json& value) {
  config[key] = value;
  return config;
}

TEST(HfModelDirectory, Gpt2sShapeGoesThereAndBack) {
  ModelConfig others;
  others.dropout = 0.25;
  others.seed = 9;
  const ModelConfig model = read(kGpt2Config, others);
  ModelConfig expected{
      .type = "gpt2", .vocab_size = 61, .context_length = 16, .layers = 2, .width = 24, .heads = 3};
  expected.dropout = 0.25;
  expected.seed = 9;
  EXPECT_EQ(model, expected);
  const Json written = Json::parse(config_text(model, Dtype::bf16, 60));
  EXPECT_EQ(read(written, others), model);
  EXPECT_EQ(written.at("architectures"), Json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(written.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(written.at("eos_token_id"), 60);
  EXPECT_EQ(hf_name(model, "h.0.attn.c_attn.weight"), "transformer.h.0.attn.c_attn.weight");
}

TEST(HfModelDirectory, SaysAllThatItDoesNotDo) {
  EXPECT_ERROR(read(with(kGpt2Config, "model_type", "mamba")), Unsupported,
               "unknown architecture \"mamba\"; known");
  const Json odd = with(with(kGpt2Config, "activation_function", "relu"), "n_layer", -1);
  EXPECT_ERROR(read(odd), Unsupported, "activation_function: expected \"gelu_new\"");
  EXPECT_ERROR(read(odd), Unsupported, "n_layer: expected a whole number");
  EXPECT_ERROR(read(with(kGpt2Config, "n_inner", 7)), Unsupported, "n_inner: expected 96");
  EXPECT_ERROR(read(with(kGpt2Config, "n_embd", 1e300)), Unsupported, "n_embd");
  EXPECT_ERROR(read(Json::array()), Corrupt, "expected a JSON object");
  EXPECT_ERROR(read(Json::object()), Corrupt, "model_type");
  const TemporaryDirectory empty;
  EXPECT_FALSE(is_model_directory(empty.path()));
  EXPECT_ERROR(read_model_config(empty.path()), Config, "no config.json");
}

TEST(HfModelDirectory, EndTokenIsTheFirstOfSeveral) {
  const TemporaryDirectory directory;
  directory.write("config.json", kGpt2Config.dump());
  EXPECT_TRUE(is_model_directory(directory.path()));
  EXPECT_EQ(read_end_token(directory.path()), 60);
  directory.write("config.json", with(kGpt2Config, "eos_token_id", {5, 6}).dump());
  EXPECT_EQ(read_end_token(directory.path()), 5);
  directory.write("config.json", with(kGpt2Config, "eos_token_id", nullptr).dump());
  EXPECT_EQ(read_end_token(directory.path()), std::nullopt);
}

class Match : public ::testing::Test {
 protected:
  std::map<std::string, std::string> matched(const std::vector<testing::FileTensor>& tensors) {
    directory_.write("model.safetensors", safetensors_bytes(tensors));
    const std::vector<WantedTensor> wanted{{"wte.weight", {2, 1}}, {"ln_f.bias", {1}}};
    return match(Weights(directory_.path()), ModelConfig{}, wanted);
  }
  TemporaryDirectory directory_;
  const testing::FileTensor wte_ = file_tensor<float>("transformer.wte.weight", Dtype::f32, {2, 1}, {1, 2});
  const testing::FileTensor bias_ = file_tensor<float>("transformer.ln_f.bias", Dtype::f32, {1}, {1});
};

TEST_F(Match, NamesWithAndWithoutThePrefixAndOldMasks) {
  const auto mask = file_tensor<uint8_t>("transformer.h.0.attn.bias", Dtype::u8, {1}, {1});
  const auto full = matched({wte_, bias_, mask});
  EXPECT_EQ(full.at("wte.weight"), "transformer.wte.weight");
  const auto bare = matched({file_tensor<float>("wte.weight", Dtype::f32, {2, 1}, {1, 2}),
                             file_tensor<float>("ln_f.bias", Dtype::f32, {1}, {1})});
  EXPECT_EQ(bare.at("ln_f.bias"), "ln_f.bias");
}

TEST_F(Match, ListsAllThatIsWrong) {
  const auto extra = file_tensor<float>("transformer.wpe.weight", Dtype::f32, {1}, {1});
  const auto shape = file_tensor<float>("transformer.wte.weight", Dtype::f32, {1, 2}, {1, 2});
  const auto type = file_tensor<int64_t>("transformer.wte.weight", Dtype::i64, {2, 1}, {1, 2});
  EXPECT_ERROR(matched({extra, shape}), Config, "missing: transformer.ln_f.bias");
  EXPECT_ERROR(matched({extra, shape}), Config, "not the model's: \"transformer.wpe.weight\"");
  EXPECT_ERROR(matched({extra, shape}), Config,
               "of another shape: transformer.wte.weight [1, 2] instead of [2, 1]");
  EXPECT_ERROR(matched({bias_, type}), Config,
               "of a type that is not read (fp32, bf16, fp16 are): transformer.wte");
}

}  // namespace
}  // namespace zero::hf

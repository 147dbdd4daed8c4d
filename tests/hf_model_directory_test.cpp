// config.json to a model's shape and back, and the tensors of a directory matched with a model's parameters.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hf/model_directory.h"
#include "support/expect_error.h"
#include "support/safetensors_files.h"
#include "support/temporary_directory.h"
#include "zero/config.h"
#include "zero/hf_model.h"

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
  ModelConfig expected;
  expected.vocab_size = 61;
  expected.context_length = 16;
  expected.layers = 2;
  expected.width = 24;
  expected.heads = 3;
  expected.dropout = 0.25;
  expected.seed = 9;
  EXPECT_EQ(model, expected);
  const Json written = Json::parse(config_text(model, Dtype::bf16, begin_and_end(60)));
  EXPECT_EQ(read(written, others), model);
  EXPECT_EQ(written.at("architectures"), Json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(written.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(written.at("eos_token_id"), 60);
  EXPECT_EQ(hf_name(model, "h.0.attn.c_attn.weight"), "transformer.h.0.attn.c_attn.weight");
}

// The shape of Llama 3.2 1B, in the words of transformers 4 and 5.
TEST(HfModelDirectory, LlamasShapeGoesThereAndBack) {
  const Json scaling = {{"factor", 32.0},
                        {"high_freq_factor", 4.0},
                        {"low_freq_factor", 1.0},
                        {"original_max_position_embeddings", 8192},
                        {"rope_type", "llama3"}};
  const Json config = {{"model_type", "llama"},       {"head_dim", 64},
                       {"hidden_act", "silu"},        {"hidden_size", 2048},
                       {"intermediate_size", 8192},   {"max_position_embeddings", 131072},
                       {"num_attention_heads", 32},   {"num_hidden_layers", 16},
                       {"num_key_value_heads", 8},    {"rms_norm_eps", 1e-5},
                       {"rope_scaling", scaling},     {"rope_theta", 500000.0},
                       {"tie_word_embeddings", true}, {"vocab_size", 128256}};
  const ModelConfig model = read(config);
  EXPECT_EQ(model.kv_heads, 8);
  EXPECT_EQ(model.rope_theta, 500000);
  EXPECT_EQ(model.rope_scaling, (RopeScaling{.factor = 32}));
  EXPECT_EQ(model.tied_head, true);
  EXPECT_EQ(read(Json::parse(config_text(model, Dtype::f32))), model);

  Json newer = config;
  newer.erase("rope_scaling");
  newer.erase("rope_theta");
  newer["rope_parameters"] = scaling;
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(read(newer), model);
  EXPECT_ERROR(read(with(config, "rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}})), Unsupported,
               "rope_scaling.rope_type: expected default or llama3, got \"yarn\"");
  EXPECT_ERROR(read(with(config, "attention_bias", true)), Unsupported, "attention_bias: expected false");
}

TEST(HfModelDirectory, GptNeoxsShapeGoesThereAndBack) {
  const Json config = {
      {"model_type", "gpt_neox"},   {"hidden_act", "gelu_fast"},    {"hidden_size", 6144},
      {"intermediate_size", 24576}, {"layer_norm_eps", 1e-5},       {"max_position_embeddings", 2048},
      {"num_attention_heads", 64},  {"num_hidden_layers", 44},      {"rotary_emb_base", 10000},
      {"rotary_pct", 0.25},         {"tie_word_embeddings", false}, {"use_parallel_residual", true},
      {"vocab_size", 50432}};
  const ModelConfig model = read(config);
  EXPECT_TRUE(model.tanh_gelu);
  EXPECT_EQ(read(Json::parse(config_text(model, Dtype::f32))), model);
  EXPECT_FALSE(read(with(config, "hidden_act", "gelu")).tanh_gelu);
  Json newer = config;
  newer.erase("rotary_pct");
  newer["rope_parameters"] = {
      {"rope_theta", 20000}, {"partial_rotary_factor", 0.5}, {"rope_type", "default"}};
  EXPECT_EQ(read(newer).rotary_fraction, 0.5);
  EXPECT_EQ(read(newer).rope_theta, 20000);
}

// What `model: {"from": DIR}` becomes.
TEST(AdoptModel, TakesTheShapeAndRefusesOtherNumbers) {
  const TemporaryDirectory directory;
  directory.write("config.json", kGpt2Config.dump());
  const auto config_with = [&](const std::string& more) {
    return parse_config(R"({"train_batch_size": 1, "data": {"sequence_length": 16}, "model": {"from": ")" +
                        directory.path().string() + "\"" + more + "}}");
  };
  const Config config = adopt_model(config_with(R"(, "layers": 2, "dropout": 0.5, "seed": 3)"));
  EXPECT_EQ(config.model.vocab_size, 61);
  EXPECT_EQ(config.model.dropout, 0.5);
  EXPECT_EQ(config.model.seed, 3);
  const Config resolved = resolve(config, 1);
  EXPECT_EQ(resolved.data.sequence_length, 16);
  EXPECT_EQ(adopt_model(parse_config(to_json(resolved))), resolved);
  EXPECT_ERROR(adopt_model(config_with(R"(, "layers": 3, "type": "llama", "kv_heads": 1)")), Config,
               "model.kv_heads is null there and 1 here");
  EXPECT_ERROR(adopt_model(config_with(R"(, "layers": 3, "type": "llama", "kv_heads": 1)")), Config,
               "model.layers is 2 there and 3 here");
  Config too_long = config_with("");
  too_long.data.sequence_length = 17;
  EXPECT_ERROR(adopt_model(too_long), Config, "at most model.context_length 16");
}

TEST(HfModelDirectory, SaysAllThatItDoesNotDo) {
  EXPECT_ERROR(read(with(kGpt2Config, "model_type", "mamba")), Unsupported,
               "unknown architecture \"mamba\"; known");
  const Json odd = with(with(kGpt2Config, "activation_function", "relu"), "n_layer", -1);
  EXPECT_ERROR(read(odd), Unsupported, "activation_function: expected \"gelu_new\"");
  EXPECT_ERROR(read(odd), Unsupported, "n_layer: expected a whole number");
  EXPECT_ERROR(read(with(kGpt2Config, "n_inner", 7)), Unsupported, "n_inner: expected 96");
  EXPECT_ERROR(read(with(kGpt2Config, "n_embd", 1e300)), Unsupported, "n_embd");
  EXPECT_ERROR(read(Json::array()), Corrupt, "config.json: expected an object, got []");
  EXPECT_ERROR(read(Json::object()), Corrupt, "model_type");
  const TemporaryDirectory empty;
  EXPECT_FALSE(is_model_directory(empty.path()));
  EXPECT_ERROR(read_model_config(empty.path()), Config, "no config.json");
}

TEST(HfModelDirectory, EndTokensAreAllThatAreNamed) {
  const TemporaryDirectory directory;
  directory.write("config.json", kGpt2Config.dump());
  EXPECT_TRUE(is_model_directory(directory.path()));
  using Tokens = std::vector<int64_t>;
  EXPECT_EQ(read_end_tokens(directory.path()), Tokens{60});
  directory.write("config.json", with(kGpt2Config, "eos_token_id", {5, 6}).dump());
  EXPECT_EQ(read_end_tokens(directory.path()), (Tokens{5, 6}));
  directory.write("config.json", with(kGpt2Config, "eos_token_id", nullptr).dump());
  EXPECT_EQ(read_end_tokens(directory.path()), Tokens());
  directory.write("config.json", with(kGpt2Config, "eos_token_id", {5, "six"}).dump());
  EXPECT_ERROR(read_end_tokens(directory.path()), Corrupt, "eos_token_id");
  // What is said of generation goes before what is said of the model.
  directory.write("generation_config.json", R"({"eos_token_id": [7, 8, 9]})");
  EXPECT_EQ(read_end_tokens(directory.path()), (Tokens{7, 8, 9}));
  directory.write("config.json", kGpt2Config.dump());
  directory.write("generation_config.json", R"({"top_p": 0.9})");
  EXPECT_EQ(read_end_tokens(directory.path()), Tokens{60});
}

TEST(HfModelDirectory, SpecialIdsAreKeptAsTheyStand) {
  const TemporaryDirectory directory;
  Json config = with(kGpt2Config, "eos_token_id", {5, 6});
  config["bos_token_id"] = 7;
  config["pad_token_id"] = nullptr;
  directory.write("config.json", config.dump());
  const SpecialIds ids = read_special_ids(directory.path());
  EXPECT_EQ(ids, (SpecialIds{{"bos_token_id", "7"}, {"eos_token_id", "[5,6]"}, {"pad_token_id", "null"}}));
  const Json written = Json::parse(config_text(read(kGpt2Config), Dtype::f32, ids));
  EXPECT_EQ(written.at("eos_token_id"), Json({5, 6}));
  EXPECT_EQ(written.at("bos_token_id"), 7);
  EXPECT_TRUE(written.at("pad_token_id").is_null());
  directory.write("config.json", with(kGpt2Config, "pad_token_id", "none").dump());
  EXPECT_ERROR(read_special_ids(directory.path()), Corrupt, "pad_token_id");
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

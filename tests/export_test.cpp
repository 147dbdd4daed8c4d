// From a sharded checkpoint to plain files: conversions, archives, directories, memory.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "export/consolidate.h"
#include "export/convert.h"
#include "export/zip.h"
#include "hf/weights.h"
#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "zero/config.h"
#include "zero/tokenizer.h"

namespace zero {
namespace {

using namespace testing;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

template <class To, class From>
std::vector<To> converted(Dtype from, const std::vector<From>& values, Dtype to) {
  std::vector<std::byte> bytes;
  exporting::convert(from, std::as_bytes(std::span(values)), to, bytes, "x");
  std::vector<To> result(bytes.size() / sizeof(To));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

TEST(ExportConvert, RoundsToTheNearest) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.f,      -0.f,         1.f,      -2.5f,    1.f + 0x1p-9f, 1.f + 0x1p-8f,
                                     inf,      -inf,         0x1p-24f, 0x1p-25f, 0x1.8p-25f,    65504.f,
                                     0x1p-14f, 0x1.ffcp-15f, 65519.f,  0.1f};
  EXPECT_EQ((converted<uint16_t>(Dtype::f32, values, Dtype::f16)),
            (std::vector<uint16_t>{0, 0x8000, 0x3c00, 0xc100, 0x3c02, 0x3c04, 0x7c00, 0xfc00, 1, 0, 1, 0x7bff,
                                   0x400, 0x400, 0x7bff, 0x2e66}));
  EXPECT_EQ(
      (converted<uint16_t>(Dtype::f32,
                           std::vector<float>{1.f, 1.f + 0x1p-8f, 1.f + 0x1.8p-8f, 1.f + 0x1p-7f, -0.1f, inf},
                           Dtype::bf16)),
      (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f81, 0x3f81, 0xbdcd, 0x7f80}));
  EXPECT_EQ((converted<float>(Dtype::f64, std::vector<double>{0.1, 1e300 * 0, -3}, Dtype::f32)),
            (std::vector<float>{0.1f, 0.f, -3.f}));
}

TEST(ExportConvert, HalvesComeBackAsTheyWere) {
  for (const Dtype half : {Dtype::f16, Dtype::bf16}) {
    std::vector<uint16_t> all(1 << 16);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    const auto floats = converted<float>(half, all, Dtype::f32);
    const auto back = converted<uint16_t>(Dtype::f32, floats, half);
    for (size_t i = 0; i < all.size(); ++i)
      if (!std::isnan(floats[i])) {
        ASSERT_EQ(back[i], all[i]) << i;
      }
    EXPECT_TRUE(std::isnan(converted<float>(half, std::vector<uint16_t>{0x7fff}, Dtype::f32)[0]));
    EXPECT_TRUE(std::isnan(converted<float>(
        half, converted<uint16_t>(Dtype::f32, std::vector<float>{NAN}, half), Dtype::f32)[0]));
  }
}

TEST(ExportConvert, ValuesThatDoNotFitAreRefused) {
  EXPECT_ERROR(converted<uint16_t>(Dtype::f32, std::vector<float>{1, 65520}, Dtype::f16), Config,
               "too large for fp16");
  EXPECT_ERROR(converted<uint16_t>(Dtype::f32, std::vector<float>{3.4e38f}, Dtype::bf16), Config,
               "too large for bf16");
  EXPECT_ERROR(converted<float>(Dtype::f64, std::vector<double>{1e200}, Dtype::f32), Config,
               "too large for fp32");
}

uint64_t number_at(const std::string& bytes, size_t offset, int width) {
  uint64_t value = 0;
  for (int i = 0; i < width; ++i)
    value |= uint64_t{static_cast<unsigned char>(bytes[offset + static_cast<size_t>(i)])} << (8 * i);
  return value;
}

TEST(ExportZip, HasZip64RecordsOnlyWhereNeeded) {
  TemporaryDirectory directory;
  for (const bool large : {false, true}) {
    const fs::path path = directory.path() / (large ? "large.zip" : "small.zip");
    exporting::ZipWriter zip(path, large ? 0 : 0xfffffffe);
    zip.add("a/one", "hello");
    zip.add("a/empty", "");
    zip.add("a/two", std::string(1000, 'x'));
    zip.finish();
    const std::string bytes = read_bytes(path);
    EXPECT_EQ(number_at(bytes, bytes.size() - 22, 4), 0x06054b50u);
    EXPECT_EQ(number_at(bytes, bytes.size() - 22 + 10, 2), large ? 0xffffu : 3u);
    EXPECT_EQ(bytes.find("PK\x06\x06") != bytes.npos, large);
    EXPECT_EQ(number_at(bytes, 14, 4), 0x3610a686u) << "CRC-32 of hello";
    EXPECT_EQ(bytes.find("hello") % 64, 0u);
    EXPECT_EQ(bytes.find("xxxx") % 64, 0u);
  }
  exporting::ZipWriter wrong(directory.path() / "wrong.zip");
  EXPECT_ERROR(wrong.add("a", 3, [](const auto& sink) { sink(std::as_bytes(std::span("four", 4))); }),
               Internal, "another size");
}

// The parameters of a GPT-2 of one layer.
const std::map<std::string, std::vector<int64_t>> kShapes{{"wte.weight", {300, 8}},
                                                          {"wpe.weight", {16, 8}},
                                                          {"h.0.ln_1.weight", {8}},
                                                          {"h.0.ln_1.bias", {8}},
                                                          {"h.0.attn.c_attn.weight", {8, 24}},
                                                          {"h.0.attn.c_attn.bias", {24}},
                                                          {"h.0.attn.c_proj.weight", {8, 8}},
                                                          {"h.0.attn.c_proj.bias", {8}},
                                                          {"h.0.ln_2.weight", {8}},
                                                          {"h.0.ln_2.bias", {8}},
                                                          {"h.0.mlp.c_fc.weight", {8, 32}},
                                                          {"h.0.mlp.c_fc.bias", {32}},
                                                          {"h.0.mlp.c_proj.weight", {32, 8}},
                                                          {"h.0.mlp.c_proj.bias", {8}},
                                                          {"ln_f.weight", {8}},
                                                          {"ln_f.bias", {8}}};

// Its tree, with adapters of c_attn where the configuration has some.
ModuleSpec spec_of(const Config& config) {
  ModuleSpec model;
  for (const auto& [name, shape] : kShapes) model.parameters.push_back({.name = name, .shape = shape});
  if (const int64_t rank = config.lora.rank; rank > 0) {
    model.parameters.push_back({.name = "h.0.attn.c_attn.lora_A.weight", .shape = {rank, 8}});
    model.parameters.push_back({.name = "h.0.attn.c_attn.lora_B.weight", .shape = {24, rank}});
  }
  return model;
}

/// A checkpoint of it as `zero train` makes it.
class Consolidate : public ::testing::Test {
 protected:
  Consolidate() {
    for (const auto& [name, shape] : kShapes) {
      GlobalTensor tensor = make_tensor(Dtype::f32, shape, 1);
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        const float value = static_cast<float>(i) * 0.25f - 3;
        std::memcpy(tensor.bytes.data() + i * 4, &value, 4);
      }
      tensors_["model/" + name] = tensor;
      tensors_["optimizer/exp_avg/" + name] = tensor;
    }
    tensors_["rank/0/random"] = make_tensor(Dtype::u8, {16}, 3);
    tensors_["buffer/table"] = make_tensor(Dtype::i64, {4}, 4);
  }

  static Consolidated consolidate(const fs::path& checkpoint, const fs::path& out,
                                  const ConsolidateOptions& options = {}) {
    return exporting::consolidate(checkpoint, out, options, spec_of);
  }

  fs::path tokenizer() const { return fs::path(ZERO_TEST_DATA) / "golden/tokenizer/tiny.json"; }

  std::string metadata() const {
    const Vocabulary vocabulary = Tokenizer::load(folder_.path() / "tokenizer").vocabulary();
    const nlohmann::json config = {
        {"train_batch_size", 2},
        {"model", {{"vocab_size", 300}, {"context_length", 16}, {"layers", 1}, {"width", 8}, {"heads", 2}}},
        {"data", {{"tokenizer", folder_.path() / "tokenizer"}}}};
    const nlohmann::json user = {
        {"config", nlohmann::json::parse(to_json(resolve(parse_config(config.dump()), 1)))},
        {"vocabulary", {{"size", vocabulary.size}, {"fingerprint", vocabulary.fingerprint}}}};
    return nlohmann::json{{"engine", nlohmann::json::object()}, {"user", user}}.dump();
  }
  void SetUp() override {
    fs::create_directory(folder_.path() / "tokenizer");
    fs::copy_file(tokenizer(), folder_.path() / "tokenizer/tokenizer.json");
    checkpoint_ = save(folder_.path() / "run", 5, tensors_, 3, 0, metadata());
  }

  TemporaryDirectory folder_;
  Tensors tensors_;
  fs::path checkpoint_;
  fs::path out() const { return folder_.path() / "out"; }
};

void read_flat(const hf::Weights& weights, const std::string& name, int64_t begin, std::vector<float>& into) {
  weights.read(name, BoxRange::flat(weights.find(name)->shape, begin, std::ssize(into)), into);
}

TEST_F(Consolidate, MakesAModelDirectory) {
  const Consolidated made = consolidate(checkpoint_, out());
  EXPECT_TRUE(made.is_model);
  EXPECT_EQ(made.step, 5);
  EXPECT_EQ(made.tensors, 16);
  EXPECT_EQ(made.bytes, (300 * 8 + 16 * 8 + 12 * 8 * 8 + 13 * 8 + 2 * 8) * 4);
  EXPECT_EQ(made.files,
            (Names{"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}));
  EXPECT_EQ(names_in(out()),
            (Names{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}));
  const auto config = nlohmann::json::parse(read_bytes(out() / "config.json"));
  EXPECT_EQ(config["model_type"], "gpt2");
  EXPECT_EQ(config["n_embd"], 8);
  EXPECT_EQ(read_bytes(out() / "tokenizer.json"), read_bytes(tokenizer()));
  const hf::Weights weights(out());
  std::vector<float> values(300 * 8);
  read_flat(weights, "transformer.wte.weight", 0, values);
  EXPECT_EQ(std::memcmp(values.data(), tensors_["model/wte.weight"].bytes.data(), values.size() * 4), 0);
  EXPECT_EQ(weights.names().size(), 16u);
  EXPECT_EQ(names_in(folder_.path()), (Names{"out", "run", "tokenizer"})) << "no temporary is left";
}

TEST_F(Consolidate, ConvertsAndSplits) {
  const Consolidated made = consolidate(checkpoint_, out(), {.dtype = Dtype::bf16, .most_file_bytes = 2000});
  EXPECT_EQ(made.files.size(), 1u + 2u + 3u + 1u);  // configuration, tokenizer, weights, index
  EXPECT_EQ(nlohmann::json::parse(read_bytes(out() / "config.json"))["torch_dtype"], "bfloat16");
  const hf::Weights weights(out());
  EXPECT_EQ(weights.find("transformer.wte.weight")->dtype, Dtype::bf16);
  std::vector<float> values(8);
  read_flat(weights, "transformer.wpe.weight", 8, values);
  EXPECT_EQ(values[1], 9 * 0.25f - 3);
  EXPECT_ERROR(consolidate(checkpoint_, folder_.path() / "half", {.dtype = Dtype::f64}), Config, "--dtype");
}

TEST_F(Consolidate, PytorchFilesAreNamedAsTransformersDoes) {
  ConsolidateOptions options{.format = ConsolidateOptions::Format::Pytorch};
  consolidate(checkpoint_, out(), options);
  EXPECT_EQ(names_in(out()),
            (Names{"config.json", "pytorch_model.bin", "tokenizer.json", "tokenizer_config.json"}));
  options.most_file_bytes = 5000;
  const Consolidated made = consolidate(checkpoint_, folder_.path() / "split", options);
  const auto index = nlohmann::json::parse(read_bytes(folder_.path() / "split/pytorch_model.bin.index.json"));
  EXPECT_EQ(index["weight_map"]["transformer.wte.weight"], "pytorch_model-00002-of-00002.bin");
  EXPECT_EQ(index["metadata"]["total_size"], made.bytes);
}

TEST_F(Consolidate, WeightsWithoutAConfigurationKeepTheirNames) {
  const fs::path other = save(folder_.path() / "other", 1, tensors_, 2, 0, R"({"user": {}})");
  const Consolidated made = consolidate(other, out());
  EXPECT_FALSE(made.is_model);
  EXPECT_EQ(made.files, Names{"model.safetensors"});
  EXPECT_EQ(made.tensors, 17);
  const std::string file = read_bytes(out() / "model.safetensors");
  EXPECT_NE(file.find("\"h.0.ln_1.weight\""), file.npos);
  EXPECT_NE(file.find("\"table\""), file.npos);
  EXPECT_EQ(file.find("exp_avg"), file.npos);
}

TEST_F(Consolidate, RefusesWhatItCannotDoBeforeItBegins) {
  fs::create_directories(out() / "x");
  EXPECT_ERROR(consolidate(checkpoint_, out()), Config, "no empty directory");
  fs::remove(out() / "x");
  consolidate(checkpoint_, out());
  EXPECT_ERROR(consolidate(checkpoint_, out()), Config, "no empty directory");
  const fs::path next = folder_.path() / "next";
  EXPECT_ERROR(consolidate(checkpoint_, next, {.tokenizer = folder_.path() / "none"}), Config,
               "--tokenizer DIR");
  EXPECT_EQ(consolidate(checkpoint_, next, {.tokenizer = ""}).files,
            (Names{"config.json", "model.safetensors"}));
  write_file(folder_.path() / "file", "");
  EXPECT_ERROR(consolidate(checkpoint_, folder_.path() / "file/out"), Io, "cannot create");
  EXPECT_ERROR(consolidate(folder_.path(), folder_.path() / "o"), Io, "index.json: cannot open");

  std::string json = read_bytes(tokenizer());
  while (json.find("<|endoftext|>") != json.npos)
    json.replace(json.find("<|endoftext|>"), 13, "<|endoftxet|>");
  fs::create_directory(folder_.path() / "wrong");
  write_file(folder_.path() / "wrong/tokenizer.json", json);
  EXPECT_ERROR(consolidate(checkpoint_, folder_.path() / "o", {.tokenizer = folder_.path() / "wrong"}),
               Config, "not the tokenizer");
}

// What training began with says more than a tokenizer can: several ends, another begin, how texts are
// sampled.
TEST_F(Consolidate, CarriesThroughWhatTheModelDirectoryHad) {
  const fs::path base = folder_.path() / "base";
  consolidate(checkpoint_, base);
  EXPECT_EQ(nlohmann::json::parse(read_bytes(base / "config.json"))["bos_token_id"],
            *Tokenizer::load(tokenizer()).end_of_text());
  auto config = nlohmann::json::parse(read_bytes(base / "config.json"));
  config["eos_token_id"] = {299, 7};
  config["bos_token_id"] = 5;
  config["pad_token_id"] = 6;
  write_file(base / "config.json", config.dump());
  write_file(base / "generation_config.json", R"({"eos_token_id": [299, 7], "top_p": 0.9})");
  write_file(base / "chat_template.jinja", "{{ messages }}");

  auto about = nlohmann::json::parse(metadata());
  about["user"]["config"]["model"]["from"] = base;
  const auto made_of = [&](const std::string& tokenizer, const ConsolidateOptions& options) {
    about["user"]["config"]["data"]["tokenizer"] = tokenizer;
    fs::remove_all(folder_.path() / "run");
    fs::remove_all(out());
    consolidate(save(folder_.path() / "run", 5, tensors_, 3, 0, about.dump()), out(), options);
    return nlohmann::json::parse(read_bytes(out() / "config.json"));
  };
  for (const std::string& tokenizer : {std::string(), (folder_.path() / "tokenizer").string()}) {
    const auto made = made_of(tokenizer, {});
    EXPECT_EQ(made["eos_token_id"], nlohmann::json({299, 7}));
    EXPECT_EQ(made["bos_token_id"], 5);
    EXPECT_EQ(made["pad_token_id"], 6);
    EXPECT_EQ(read_bytes(out() / "tokenizer.json"), read_bytes(base / "tokenizer.json"));
    EXPECT_EQ(read_bytes(out() / "generation_config.json"), read_bytes(base / "generation_config.json"));
    EXPECT_EQ(fs::exists(out() / "chat_template.jinja"), tokenizer.empty());
  }
  // Its ids mean other tokens where training has gone on with another tokenizer.
  const std::string same = read_bytes(base / "tokenizer.json");
  std::string other = same;
  while (other.find("<|endoftext|>") != other.npos)
    other.replace(other.find("<|endoftext|>"), 13, "<|endoftxet|>");
  write_file(base / "tokenizer.json", other);
  const auto retrained = made_of((folder_.path() / "tokenizer").string(), {});
  EXPECT_EQ(retrained["eos_token_id"], *Tokenizer::load(tokenizer()).end_of_text());
  EXPECT_FALSE(retrained.contains("pad_token_id"));
  write_file(base / "tokenizer.json", same);
  fs::rename(base, folder_.path() / "moved");
  EXPECT_ERROR(made_of("", {}), Config, "training began with a model directory there, and there is none now");
  EXPECT_EQ(made_of("", {.from = folder_.path() / "moved"})["eos_token_id"], nlohmann::json({299, 7}));
  EXPECT_FALSE(made_of("", {.from = ""}).contains("eos_token_id"));
}

TEST_F(Consolidate, AdaptersAreNotDroppedInSilence) {
  auto about = nlohmann::json::parse(metadata());
  about["user"]["config"]["lora"] = {{"rank", 2}, {"targets", {"*.c_attn"}}};
  const fs::path adapted = save(folder_.path() / "adapted", 1, tensors_, 2, 0, about.dump());
  EXPECT_ERROR(consolidate(adapted, out()), Unsupported, "merge them with --merge-adapters");
}

// As PEFT merges: W + alpha / rank * B A, with GPT-2's weights the other way round.
TEST_F(Consolidate, MergesAdapters) {
  constexpr int64_t kIn = 8, kOut = 24, kRank = 2;
  const auto values_of = [](int64_t numel, int64_t step) {
    std::vector<float> values;
    for (int64_t i = 0; i < numel; ++i) values.push_back(static_cast<float>(i * step % 13 - 6) * 0.25f);
    return values;
  };
  const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                       const std::vector<float>& values) {
    GlobalTensor tensor = make_tensor(Dtype::f32, std::move(shape), 1);
    std::memcpy(tensor.bytes.data(), values.data(), values.size() * sizeof(float));
    tensors_["model/" + name] = tensor;
  };
  const auto w = values_of(kIn * kOut, 3), a = values_of(kRank * kIn, 5), b = values_of(kOut * kRank, 7);
  add("h.0.attn.c_attn.weight", {kIn, kOut}, w);
  add("h.0.attn.c_attn.lora_A.weight", {kRank, kIn}, a);
  add("h.0.attn.c_attn.lora_B.weight", {kOut, kRank}, b);
  auto about = nlohmann::json::parse(metadata());
  about["user"]["config"]["lora"] = {{"rank", kRank}, {"alpha", 6}, {"targets", {"*.c_attn"}}};
  const fs::path adapted = save(folder_.path() / "adapted", 1, tensors_, 3, 0, about.dump());

  for (const bool half : {false, true}) {
    const fs::path to = folder_.path() / (half ? "half" : "full");
    const Dtype dtype = half ? Dtype::bf16 : Dtype::f32;
    EXPECT_EQ(consolidate(adapted, to, {.dtype = dtype, .merge_adapters = true}).tensors, 16);
    const hf::Weights weights(to);
    EXPECT_EQ(weights.names().size(), 16u);
    std::vector<float> merged(w.size()), expected = w;
    read_flat(weights, "transformer.h.0.attn.c_attn.weight", 0, merged);
    for (int64_t i = 0; i < kIn; ++i)
      for (int64_t o = 0; o < kOut; ++o)
        for (int64_t k = 0; k < kRank; ++k)
          expected[static_cast<size_t>(i * kOut + o)] +=
              3 * b[static_cast<size_t>(o * kRank + k)] * a[static_cast<size_t>(k * kIn + i)];
    if (half)
      expected =
          converted<float>(Dtype::bf16, converted<uint16_t>(Dtype::f32, expected, Dtype::bf16), Dtype::f32);
    EXPECT_EQ(merged, expected);  // small multiples of 1/16: exact in any order
  }
  // Adapters that do not fit their weight.
  add("h.0.attn.c_attn.lora_A.weight", {kIn, kRank}, a);
  const fs::path wrong = save(folder_.path() / "wrong", 1, tensors_, 3, 0, about.dump());
  EXPECT_ERROR(consolidate(wrong, out(), {.merge_adapters = true}), Corrupt, "does not fit its weight's");
  // And one that is not there: the weights alone are not what was trained.
  tensors_.erase("model/h.0.attn.c_attn.lora_A.weight");
  tensors_.erase("model/h.0.attn.c_attn.lora_B.weight");
  const fs::path bare = save(folder_.path() / "bare", 1, tensors_, 3, 0, about.dump());
  EXPECT_ERROR(consolidate(bare, out(), {.merge_adapters = true}), Corrupt,
               "it lacks \"h.0.attn.c_attn.lora_A.weight\" of its model");
  EXPECT_FALSE(fs::exists(out()));
}

// Readers would draw what is missing anew.
TEST_F(Consolidate, OnlyTheWholeModelIsTaken) {
  const auto refused = [&](const std::string& name, const Tensors& tensors, const std::string& why) {
    const fs::path other = save(folder_.path() / name, 1, tensors, 2, 0, metadata());
    EXPECT_ERROR(consolidate(other, out()), Corrupt, why);
    EXPECT_FALSE(fs::exists(out()));
  };
  Tensors lacking = tensors_, other_shape = tensors_, more = tensors_;
  lacking.erase("model/h.0.ln_2.bias");
  refused("lacking", lacking, "it lacks \"h.0.ln_2.bias\" of its model");
  other_shape["model/wpe.weight"] = make_tensor(Dtype::f32, {8, 16}, 1);
  refused("turned", other_shape, "\"wpe.weight\" is [8, 16], its model's is [16, 8]");
  more["model/h.1.ln_1.bias"] = tensors_["model/h.0.ln_1.bias"];
  refused("more", more, "it holds \"h.1.ln_1.bias\", which its model does not have");
}

TEST_F(Consolidate, APartOfAModelIsRefused) {
  const fs::path part = save(folder_.path() / "part", 1, tensors_, 2, 0,
                             R"({"engine": {"frozen_from": "base", "frozen": {}}})");
  EXPECT_ERROR(consolidate(part, out()), Unsupported, "the frozen ones are \"base\"");
}

TEST_F(Consolidate, AFrozenAdapterThatIsLeftOutIsNamed) {
  const fs::path base = folder_.path() / "base";
  consolidate(checkpoint_, base);
  auto about = nlohmann::json::parse(metadata());
  about["user"]["config"]["lora"] = {{"rank", 2}, {"targets", {"*.c_attn"}}};
  about["engine"] = {{"frozen_from", "base"},
                     {"frozen", {{"h.0.attn.c_attn.lora_A.weight", "0123456789abcdef"}}}};
  const fs::path part = save(folder_.path() / "part", 1, tensors_, 2, 0, about.dump());
  EXPECT_ERROR(consolidate(part, out(), {.merge_adapters = true, .from = base}), Unsupported,
               "the frozen adapter \"h.0.attn.c_attn.lora_A.weight\"");
}

TEST_F(Consolidate, DamageIsFoundAndNothingIsLeft) {
  const fs::path file = checkpoint_ / "rank-00001.safetensors";
  std::string bytes = read_bytes(file);
  bytes[bytes.size() / 2] ^= 1;
  write_file(file, bytes);
  EXPECT_ERROR(consolidate(checkpoint_, out()), Corrupt, "rank-00001.safetensors: tensor");
  EXPECT_EQ(names_in(folder_.path()), (Names{"run", "tokenizer"}));
}

int64_t mapped_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t pages = 0;
  in >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// With an address space that holds a third of the only tensor.
TEST(ConsolidateMemory, DoesNotGrowWithTheModel) {
  TemporaryDirectory directory;
  {
    Tensors tensors{{"model/big", make_tensor(Dtype::f32, {3, 12 << 20}, 1)}};  // 144 MiB
    save(directory.path(), 1, tensors, 2, 0, "{}");
  }
  for (const auto format : {ConsolidateOptions::Format::Safetensors, ConsolidateOptions::Format::Pytorch}) {
    const fs::path out = directory.path() / (format == ConsolidateOptions::Format::Pytorch ? "pt" : "st");
    const pid_t child = fork();
    if (child == 0) {
      const auto most = static_cast<rlim_t>(mapped_bytes() + (48 << 20));
      const rlimit limit{most, most};
      setrlimit(RLIMIT_AS, &limit);
      try {
        exporting::consolidate(directory.path() / "step-00000001", out,
                               {.format = format, .dtype = Dtype::bf16}, spec_of);
        _exit(0);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        _exit(1);
      }
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    EXPECT_GT(fs::file_size(out / (format == ConsolidateOptions::Format::Pytorch ? "pytorch_model.bin"
                                                                                 : "model.safetensors")),
              72u << 20);
  }
}

}  // namespace
}  // namespace zero

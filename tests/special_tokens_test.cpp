// The tokens around a text: what transformers gives for the same directories, and files that are broken.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "zero/tokenizer.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::read_bytes;

const std::string kRecorded = ZERO_TEST_DATA "/golden/";

json plain_tokenizer() { return json::parse(read_bytes(kRecorded + "tokenizer/tiny.json")); }

// A directory as tests/golden/special_tokens.py makes it.
fs::path write_case(const testing::TemporaryDirectory& folder, const std::string& name,
                    const json& recorded) {
  fs::create_directories(folder.path() / name);
  if (recorded.at("post_processor") != "none") {
    json tokenizer = plain_tokenizer();
    tokenizer["post_processor"] = recorded.at("post_processor");
    folder.write(name + "/tokenizer.json", tokenizer.dump());
  }
  if (recorded.at("beside") == "tokenizer.model")
    folder.write(name + "/tokenizer.model", read_bytes(kRecorded + "sentencepiece/bpe.model"));
  if (recorded.at("beside") == "vocab.json") {
    const json tokenizer = plain_tokenizer();
    std::string merges = "#version: 0.2\n";
    for (const auto& merge : tokenizer["model"]["merges"]) merges += merge.get<std::string>() + "\n";
    folder.write(name + "/vocab.json", tokenizer["model"]["vocab"].dump());
    folder.write(name + "/merges.txt", merges);
  }
  if (!recorded.at("config").is_null())
    folder.write(name + "/tokenizer_config.json", recorded.at("config").dump());
  return folder.path() / name;
}

TEST(SpecialTokens, AreThoseOfTransformers) {
  const testing::TemporaryDirectory folder;
  const json recorded = json::parse(read_bytes(kRecorded + "tokenizer/special_tokens.json"));
  const std::string text = recorded.at("text");
  EXPECT_EQ(recorded.at("cases").size(), 13u);
  for (const auto& [name, one] : recorded.at("cases").items()) {
    const Tokenizer tokenizer = Tokenizer::load(write_case(folder, name, one));
    const std::vector<int32_t> ids = one.at("ids");
    EXPECT_EQ(tokenizer.encode_with_specials(text), ids) << name;
    EXPECT_LE(tokenizer.encode(text).size(), ids.size()) << name;
    EXPECT_EQ(tokenizer.encode(text).front(), name.starts_with("pieces") ? 650 : 40) << name;
  }
}

TEST(SpecialTokens, OfTokenizerJsonCountBesideASentencePieceModelToo) {
  const testing::TemporaryDirectory folder;
  json tokenizer = plain_tokenizer();
  tokenizer["post_processor"] = {{"type", "BertProcessing"}, {"cls", {"<s>", 1}}, {"sep", {"</s>", 2}}};
  folder.write("tokenizer.json", tokenizer.dump());
  folder.write("tokenizer.model", read_bytes(kRecorded + "sentencepiece/bpe.model"));
  EXPECT_EQ(Tokenizer::load(folder.path()).encode_with_specials("Hello"),
            (std::vector<int32_t>{1, 650, 76, 653, 667, 420, 2}));
}

TEST(SpecialTokens, BrokenFilesAreRefused) {
  const testing::TemporaryDirectory folder;
  const auto with = [&](const json& processor) {
    json tokenizer = plain_tokenizer();
    tokenizer["post_processor"] = processor;
    return folder.write("tokenizer.json", tokenizer.dump());
  };
  const json text = {{"Sequence", {{"id", "A"}}}}, special = {{"SpecialToken", {{"id", "<s>"}}}};
  const auto templated = [&](const json& single, const json& ids) {
    return json{
        {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", {{"<s>", {{"ids", ids}}}}}};
  };
  EXPECT_ERROR(Tokenizer::load(with({{"type", "Other"}})), Unsupported, "\"Other\"");
  EXPECT_ERROR(Tokenizer::load(with(templated(json::array({special}), {0}))), Corrupt, "the text A once");
  EXPECT_ERROR(Tokenizer::load(with(templated(json::array({text, text}), {0}))), Corrupt, "the text A once");
  EXPECT_ERROR(Tokenizer::load(with(templated(json::array({special, text}), {-1}))), Corrupt, "ids");
  EXPECT_ERROR(Tokenizer::load(with(templated(json::array({special, text}), {1999999}))), Corrupt,
               "1999999 around a text is not in the vocabulary");
  EXPECT_ERROR(Tokenizer::load(with({{"type", "BertProcessing"}, {"cls", json::array({"<s>"})}})), Corrupt,
               "a token and its id");
  fs::remove(folder.path() / "tokenizer.json");
  folder.write("tokenizer.model", read_bytes(kRecorded + "sentencepiece/bpe.model"));
  folder.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<none>"})");
  EXPECT_ERROR(Tokenizer::load(folder.path()), Corrupt, "\"<none>\" is no token of the vocabulary");
  folder.write("tokenizer_config.json", R"({"add_bos_token": "yes"})");
  EXPECT_ERROR(Tokenizer::load(folder.path()), Corrupt, "add_bos_token");
}

}  // namespace
}  // namespace zero

// SentencePiece models: the ids of the Python package, bytes back, and files that are none.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "zero/tokenizer.h"

namespace zero {
namespace {

using nlohmann::json;
using testing::read_bytes;

const std::string kFolder = ZERO_TEST_DATA "/golden/sentencepiece/";

std::vector<std::string> recorded_texts() {
  std::vector<std::string> texts;
  const json recorded = json::parse(read_bytes(ZERO_TEST_DATA "/golden/tokenizer/expected.json"));
  for (const auto& entry : recorded.at("texts")) texts.push_back(entry.at(1));
  return texts;
}

class SentencePieceModel : public ::testing::TestWithParam<std::string> {
 protected:
  const Tokenizer tokenizer_ = Tokenizer::load(kFolder + GetParam() + ".model");
  const json expected_ = json::parse(read_bytes(kFolder + "expected.json")).at(GetParam());
  const std::vector<std::string> texts_ = recorded_texts();
};

TEST_P(SentencePieceModel, GivesTheRecordedIds) {
  EXPECT_EQ(tokenizer_.vocab_size(), expected_.at("vocab_size"));
  ASSERT_EQ(texts_.size(), expected_.at("ids").size());
  for (size_t i = 0; i < texts_.size(); ++i)
    EXPECT_EQ(tokenizer_.encode(texts_[i]), expected_.at("ids")[i].get<std::vector<int32_t>>()) << texts_[i];
}

TEST_P(SentencePieceModel, DecodesAsRecordedButForTheSpaceBefore) {
  for (size_t i = 0; i < texts_.size(); ++i) {
    std::string decoded = tokenizer_.decode(tokenizer_.encode(texts_[i]));
    if (decoded.starts_with(' ')) decoded.erase(0, 1);
    // Bytes that are no UTF-8 together cannot stand in the recording; these models make none.
    EXPECT_EQ(decoded, expected_.at("decoded")[i].get<std::string>()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SentencePieceModel, ::testing::Values("bpe", "unigram"));

TEST(SentencePiece, KnowsItsTokensAndItsDirectory) {
  const testing::TemporaryDirectory folder;
  folder.write("tokenizer.model", read_bytes(kFolder + "bpe.model"));
  folder.write("tokenizer.json", R"({"model": "not read"})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.vocabulary(), Tokenizer::load(kFolder + "bpe.model").vocabulary());
  EXPECT_NE(tokenizer.vocabulary().fingerprint,
            Tokenizer::load(kFolder + "unigram.model").vocabulary().fingerprint);
  EXPECT_EQ(tokenizer.end_of_text(), 2);
  EXPECT_EQ(tokenizer.id_of("<added>"), 3);
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 2}), "");
  EXPECT_ERROR(tokenizer.decode(std::vector<int32_t>{700}), Usage, "id 700 is no token");
  EXPECT_ERROR(tokenizer.encode("a\xff"), Corrupt, "");
}

TEST(SentencePiece, RefusesFilesThatAreNone) {
  const testing::TemporaryDirectory folder;
  const std::string model = read_bytes(kFolder + "unigram.model");
  for (const size_t kept : {size_t{0}, size_t{1}, size_t{100}, model.size() / 2, model.size() - 1}) {
    const auto path = folder.write("cut.model", model.substr(0, kept));
    SCOPED_TRACE(kept);
    EXPECT_ERROR(Tokenizer::load(path), Corrupt, "it is no SentencePiece model");
  }
  EXPECT_ERROR(Tokenizer::load(folder.path() / "none.model"), Io, "none.model");
}

// A damaged model is an error or another model, never a crash.
TEST(SentencePiece, SurvivesDamage) {
  const testing::TemporaryDirectory folder;
  const std::string model = read_bytes(kFolder + "unigram.model");
  int refused = 0;
  uint32_t state = 1;
  for (int i = 0; i < 400; ++i) {
    std::string damaged = model;
    for (int flips = 0; flips <= i % 3; ++flips) {
      state = state * 1664525 + 1013904223;
      damaged[(state >> 8) % damaged.size()] ^= static_cast<char>(1 << (state >> 5) % 8);
    }
    try {
      Tokenizer::load(folder.write("damaged.model", damaged))
          .encode("The clocks were striking 13. \xf0\x9f\x98\x80");
    } catch (const Error& error) {
      EXPECT_EQ(to_string(error.kind()), to_string(ErrorKind::Corrupt)) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace zero

// A trained vocabulary: the merges of Hugging Face's trainer, and every text comes back.
#include "zero/bpe_trainer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/expect_error_texts.h"
#include "support/temporary_directory.h"
#include "zero/tokenizer.h"

namespace zero {
namespace {

using test::expect_error;

constexpr std::string_view kText =
    "low lower lowest, newer newest widest; aaaa aaa aa banana bananas\nna\xc3\xafve caf\xc3\xa9 low low new "
    "new "
    "wide\n";

nlohmann::json trained(int64_t vocab_size) {
  BpeTrainer trainer;
  trainer.add(kText);
  return nlohmann::json::parse(trainer.train(vocab_size));
}

// Recorded from tokenizers 0.23: BpeTrainer(vocab_size=276, special_tokens=["<|endoftext|>"],
// initial_alphabet=ByteLevel.alphabet()) on kText, with ByteLevel(add_prefix_space=False) before it.
TEST(BpeTrainer, LearnsTheMergesOfTokenizers) {
  const std::vector<std::string> expected = {"a a",  "l o",         "n a",        "lo w",         "e w",
                                             "n ew", "\u0120 low",  "\u0120 new", "e s",          "\u0120 aa",
                                             "es t", "a na",        "b ana",      "e r",          "i d",
                                             "w id", "\u0120 bana", "\u0120 wid", "\u0120bana na"};
  EXPECT_EQ(trained(276)["model"]["merges"], nlohmann::json(expected));
}

TEST(BpeTrainer, EveryTextComesBack) {
  testing::TemporaryDirectory folder;
  BpeTrainer trainer;
  trainer.add(kText);
  folder.write("tokenizer.json", trainer.train(300));
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  for (const std::string& text :
       {std::string(kText), std::string("other \xe6\xbc\xa2\xe5\xad\x97\tbytes\x01")})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.end_of_text(), 0);
  EXPECT_LT(tokenizer.encode(kText).size(), kText.size() / 2);
}

TEST(BpeTrainer, StopsWhereNothingOccursTwice) {
  BpeTrainer trainer;
  trainer.add("abc");
  EXPECT_EQ(nlohmann::json::parse(trainer.train(1000))["model"]["vocab"].size(), BpeTrainer::kFewestTokens);
}

TEST(BpeTrainer, TheOrderOfTextsDoesNotMatter) {
  BpeTrainer one, two;
  one.add("to be or not to be"), one.add("that is the question");
  two.add("that is the question"), two.add("to be or not to be");
  EXPECT_EQ(one.train(270), two.train(270));
}

TEST(BpeTrainer, RefusesBadTextAndSizes) {
  BpeTrainer trainer;
  expect_error(ErrorKind::Corrupt, {"here.txt", "2"}, [&] { trainer.add("ab\xff", "here.txt"); });
  expect_error(ErrorKind::Config, {"257", "256"}, [&] { (void)trainer.train(256); });
}

}  // namespace
}  // namespace zero

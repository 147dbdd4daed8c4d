// Vocabulary files that are broken, hostile or of another kind: each is refused by name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/expect_error_texts.h"
#include "support/temporary_directory.h"
#include "zero/tokenizer.h"

namespace zero {
namespace {

using nlohmann::json;
using test::expect_error;
using testing::TemporaryDirectory;

const std::string kTiny = ZERO_TEST_DATA "/golden/tokenizer/tiny.json";

json tiny() { return json::parse(testing::read_bytes(kTiny)); }

class TokenizerFiles : public ::testing::Test {
 protected:
  void refused(ErrorKind kind, std::vector<std::string> texts, const std::function<void(json&)>& change) {
    json tokenizer = tiny();
    change(tokenizer);
    refused_text(kind, std::move(texts), tokenizer.dump());
  }

  void refused_text(ErrorKind kind, std::vector<std::string> texts, const std::string& text) {
    const auto path = folder_.write("tokenizer.json", text);
    texts.push_back(path.string());
    expect_error(kind, texts, [&] { Tokenizer::load(path); });
  }

  // vocab.json and merges.txt of the small vocabulary.
  void write_pair(const json& vocab, const std::string& merges) {
    folder_.write("pair/vocab.json", vocab.dump());
    folder_.write("pair/merges.txt", merges);
  }

  static std::string merges_text() {
    std::string text = "#version: 0.2\r\n";
    const json tokenizer = tiny();
    for (const auto& merge : tokenizer["model"]["merges"]) text += merge.get<std::string>() + "\r\n";
    return text;
  }

  TemporaryDirectory folder_;
};

TEST_F(TokenizerFiles, PairAndJsonAreTheSameVocabulary) {
  write_pair(tiny()["model"]["vocab"], merges_text());
  const auto pair = Tokenizer::load(folder_.path() / "pair"), whole = Tokenizer::load(kTiny);
  EXPECT_EQ(pair.vocabulary(), whole.vocabulary());
  EXPECT_EQ(pair.end_of_text(), whole.end_of_text());
  const std::string text = "def f(x):\n    return x  # <|endoftext|> it's 123";
  EXPECT_EQ(pair.encode(text), whole.encode(text));
}

TEST_F(TokenizerFiles, TheFingerprintIsOfIdsAndTokens) {
  const auto fingerprint = [&](const std::function<void(json&)>& change) {
    json tokenizer = tiny();
    change(tokenizer);
    return Tokenizer::load(folder_.write("tokenizer.json", tokenizer.dump(1))).vocabulary();
  };
  const auto same = fingerprint([](json&) {});
  EXPECT_EQ(same, Tokenizer::load(kTiny).vocabulary());
  const auto swapped =
      fingerprint([](json& t) { std::swap(t["model"]["vocab"]["a"], t["model"]["vocab"]["b"]); });
  EXPECT_EQ(swapped.size, same.size);
  EXPECT_NE(swapped.fingerprint, same.fingerprint);
  const auto longer = fingerprint([](json& t) { t["model"]["vocab"]["new"] = 2500; });
  EXPECT_EQ(longer.size, 2501);
  EXPECT_NE(longer.fingerprint, same.fingerprint);
}

TEST_F(TokenizerFiles, IdsWithoutATokenAreNotDecoded) {
  json tokenizer = tiny();
  tokenizer["model"]["vocab"]["new"] = 2500;
  const auto loaded = Tokenizer::load(folder_.write("tokenizer.json", tokenizer.dump()));
  EXPECT_EQ(loaded.decode(std::vector<int32_t>{2500}), "new");
  expect_error(ErrorKind::Usage, {"id 2400", "2501"}, [&] { loaded.decode(std::vector<int32_t>{2400}); });
}

TEST_F(TokenizerFiles, MissingFiles) {
  expect_error(ErrorKind::Io, {"nowhere", "no such file"},
               [&] { Tokenizer::load(folder_.path() / "nowhere"); });
  expect_error(ErrorKind::Io, {"neither tokenizer.json nor"}, [&] { Tokenizer::load(folder_.path()); });
  folder_.write("half/vocab.json", "{}");
  expect_error(ErrorKind::Io, {"half", "merges.txt"}, [&] { Tokenizer::load(folder_.path() / "half"); });
}

TEST_F(TokenizerFiles, TextThatIsNoJson) {
  refused_text(ErrorKind::Corrupt, {"not valid JSON"}, "");
  refused_text(ErrorKind::Corrupt, {"not valid JSON", "line 2"}, "{\n\"model\": }");
  refused_text(ErrorKind::Corrupt, {"not valid JSON"}, testing::read_bytes(kTiny).substr(0, 30000));
  refused_text(ErrorKind::Corrupt, {"not valid JSON"}, "{\"\xff\": 1}");
  refused_text(ErrorKind::Corrupt, {"expected an object"}, "[]");
  refused_text(ErrorKind::Corrupt, {"expected an object"}, "{}");
  refused_text(ErrorKind::Corrupt, {"not valid JSON"}, std::string(100000, '['));
}

TEST_F(TokenizerFiles, BrokenVocabulary) {
  const auto corrupt = [&](std::vector<std::string> texts, const std::function<void(json&)>& change) {
    refused(ErrorKind::Corrupt, std::move(texts), [&](json& t) { change(t["model"]["vocab"]); });
  };
  corrupt({"model.vocab", "object"}, [](json& v) { v = json::array({"a", "b"}); });
  corrupt({"\"a\"", "got -1"}, [](json& v) { v["a"] = -1; });
  corrupt({"\"a\"", "got 1.5"}, [](json& v) { v["a"] = 1.5; });
  corrupt({"\"a\"", "got \"7\""}, [](json& v) { v["a"] = "7"; });
  corrupt({"\"a\"", "got 4000000000"}, [](json& v) { v["a"] = 4000000000; });
  corrupt({"\"a\"", "got 18446744073709551615"}, [](json& v) { v["a"] = ~uint64_t{0}; });
  corrupt({"id 70", "belongs to"}, [](json& v) { v["new"] = 70; });
  std::string text = tiny().dump();
  text.insert(text.find("\"vocab\":{") + 9, "\"!\":1999999,");
  refused_text(ErrorKind::Corrupt, {"key \"!\" is given twice"}, text);
  refused(ErrorKind::Unsupported, {"no token for the byte 10"}, [](json& t) {
    t["model"]["vocab"].erase("\u010a");
    t["model"]["merges"] = json::array();
  });
}

TEST_F(TokenizerFiles, BrokenMerges) {
  const auto corrupt = [&](std::vector<std::string> texts, const std::function<void(json&)>& change) {
    refused(ErrorKind::Corrupt, std::move(texts), [&](json& t) { change(t["model"]["merges"]); });
  };
  corrupt({"model.merges", "array"}, [](json& m) { m = "a b"; });
  corrupt({"model.merges entry 3", "\"ab\""}, [](json& m) { m[3] = "ab"; });
  corrupt({"model.merges entry 3", "\"a  b\""}, [](json& m) { m[3] = "a  b"; });
  corrupt({"model.merges[3]", "got 5"}, [](json& m) { m[3] = 5; });
  corrupt({"model.merges[3]", "two tokens"}, [](json& m) { m[3] = json::array({"a"}); });
  corrupt({"model.merges entry 3", "\"zzzz\"", "not in the vocabulary"}, [](json& m) { m[3] = "zzzz a"; });
  corrupt({"model.merges entry 3", "\"~!\"", "not in the vocabulary"}, [](json& m) { m[3] = "~ !"; });
  corrupt({"model.merges entry 3", "twice"}, [](json& m) { m[3] = m[2]; });
  write_pair(tiny()["model"]["vocab"], merges_text() + "\n\na nonsense\n");
  const auto lines = std::to_string(tiny()["model"]["merges"].size() + 1 + 3);
  expect_error(ErrorKind::Corrupt, {"merges.txt line " + lines, "nonsense"},
               [&] { Tokenizer::load(folder_.path() / "pair"); });
}

TEST_F(TokenizerFiles, BrokenAddedTokens) {
  const auto corrupt = [&](std::vector<std::string> texts, const std::function<void(json&)>& change) {
    refused(ErrorKind::Corrupt, std::move(texts), [&](json& t) { change(t["added_tokens"]); });
  };
  corrupt({"added_tokens", "array"}, [](json& a) { a = 7; });
  corrupt({"added_tokens[0].content", "a string"}, [](json& a) { a[0].erase("content"); });
  corrupt({"added_tokens[0].content", "not empty"}, [](json& a) { a[0]["content"] = ""; });
  corrupt({"added_tokens[0].id", "got -5"}, [](json& a) { a[0]["id"] = -5; });
  corrupt({"added_tokens[0].lstrip", "true or false"}, [](json& a) { a[0]["lstrip"] = 3; });
  corrupt({"\"<|endoftext|>\"", "id 5 there and id 0"}, [](json& a) { a[0]["id"] = 5; });
  corrupt({"id 1 belongs to \"!\""}, [](json& a) { a.push_back({{"id", 1}, {"content", "<x>"}}); });
  corrupt({"twice"}, [](json& a) { a.push_back(a[0]); });
}

TEST_F(TokenizerFiles, OtherKinds) {
  const auto other = [&](std::vector<std::string> texts, const std::function<void(json&)>& change) {
    refused(ErrorKind::Unsupported, std::move(texts), change);
  };
  other({"model.type", "WordPiece"}, [](json& t) { t["model"]["type"] = "WordPiece"; });
  other({"model.dropout"}, [](json& t) { t["model"]["dropout"] = 0.1; });
  other({"model.end_of_word_suffix"}, [](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; });
  other({"model.byte_fallback"}, [](json& t) { t["model"]["byte_fallback"] = true; });
  other({"model.new_option"}, [](json& t) { t["model"]["new_option"] = 1; });
  other({"normalizer", "Lowercase"}, [](json& t) { t["normalizer"] = {{"type", "Lowercase"}}; });
  other({"normalizer.normalizers[1]", "Strip"}, [](json& t) {
    t["normalizer"] = json::parse(R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Strip"}]})");
  });
  other({"pre_tokenizer"}, [](json& t) { t["pre_tokenizer"] = nullptr; });
  other({"pre_tokenizer", "Metaspace"}, [](json& t) { t["pre_tokenizer"]["type"] = "Metaspace"; });
  other({"pre_tokenizer", "add_prefix_space"},
        [](json& t) { t["pre_tokenizer"]["add_prefix_space"] = true; });
  other({"pre_tokenizer.behavior", "Contiguous"}, [](json& t) {
    t["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Contiguous"}};
  });
  other({"pre_tokenizer", "\\w"}, [](json& t) {
    t["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Isolated"}};
    t["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {t["pre_tokenizer"], tiny()["pre_tokenizer"]}}};
  });
  other({"pre_tokenizer.pretokenizers[1]", "Digits"}, [](json& t) {
    t["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {tiny()["pre_tokenizer"], {{"type", "Digits"}}}}};
  });
  other({"added_tokens[0].lstrip"}, [](json& t) { t["added_tokens"][0]["lstrip"] = true; });
  other({"added_tokens[0].single_word"}, [](json& t) { t["added_tokens"][0]["single_word"] = true; });
  other({"decoder", "WordPiece"}, [](json& t) { t["decoder"]["type"] = "WordPiece"; });
}

// Any one value replaced by another of any type: loaded or refused, never worse.
TEST_F(TokenizerFiles, SurvivesAnyReplacedValue) {
  json small = tiny();
  auto& merges = small["model"]["merges"];
  merges.erase(merges.begin() + 5, merges.end());
  const json flat = small.flatten();
  int refusals = 0;
  for (const auto& item : flat.items()) {
    const std::string& pointer = item.key();
    if (pointer.starts_with("/model/vocab/") && pointer.size() != 14)
      continue;  // one-character tokens are enough
    for (const json& value :
         {json(nullptr), json(-1), json(1e300), json("x y"), json::array(), json::object(), json(true)}) {
      json changed = small;
      changed[json::json_pointer(pointer)] = value;
      try {
        Tokenizer::load(folder_.write("tokenizer.json", changed.dump())).encode("some text");
      } catch (const Error& error) {
        EXPECT_NE(error.kind(), ErrorKind::Internal) << pointer << " " << value << ": " << error.what();
        ++refusals;
      }
    }
  }
  EXPECT_GT(refusals, 100);
}

}  // namespace
}  // namespace zero

// Ids against those recorded from Hugging Face's tokenizers (tests/golden/tokenizer/make.py), and the parts
// below them.
#include "zero/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/utf8.h"
#include "data/bpe.h"
#include "data/nfc.h"
#include "data/splitter.h"
#include "data/tokenizer_spec.h"
#include "data/unicode.h"
#include "support/expect_error_texts.h"
#include "support/temporary_directory.h"

namespace zero {
namespace {

using nlohmann::json;
using test::expect_error;
using testing::TemporaryDirectory;

const std::string kGolden = ZERO_TEST_DATA "/golden/tokenizer";

const json& golden() {
  static const json expected = json::parse(testing::read_bytes(kGolden + "/expected.json"));
  return expected;
}

// GPT-2's real vocabulary is not part of the repository.
std::string gpt2_folder() {
  const char* set = std::getenv("ZERO_GPT2_VOCAB");
  return set != nullptr ? set : ZERO_TEST_DATA "/../.cache/gpt2";
}

Tokenizer load_gpt2() {
  const std::string folder = gpt2_folder();
  if (!std::filesystem::exists(folder + "/vocab.json")) {
    throw std::runtime_error("GPT-2's vocabulary is not in " + folder +
                             ": run the tests with ./dev test, or tools/fetch_gpt2_vocab.sh first");
  }
  return Tokenizer::load(folder);
}

Tokenizer load_shape(const json& shape, const TemporaryDirectory& folder) {
  if (shape["patch"].is_null()) return load_gpt2();
  json tokenizer = json::parse(testing::read_bytes(kGolden + "/tiny.json"));
  tokenizer.merge_patch(shape["patch"]);
  return Tokenizer::load(folder.write("tokenizer.json", tokenizer.dump()));
}

class Shape : public ::testing::TestWithParam<std::string> {
 protected:
  const json& shape() const {
    for (const auto& shape : golden()["shapes"]) {
      if (shape["name"] == GetParam()) return shape;
    }
    throw std::runtime_error("no such shape");
  }
  TemporaryDirectory folder_;
};

TEST_P(Shape, GivesTheRecordedIds) {
  const Tokenizer tokenizer = load_shape(shape(), folder_);
  const auto& texts = golden()["texts"];
  ASSERT_GE(texts.size(), 100U);
  ASSERT_EQ(texts.size(), shape()["ids"].size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i][1].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text), shape()["ids"][i].get<std::vector<int32_t>>())
        << texts[i][0] << ": " << texts[i][1];
  }
}

class RoundTrip : public Shape {};

TEST_P(RoundTrip, DecodesWhatItEncodes) {
  const Tokenizer tokenizer = load_shape(shape(), folder_);
  const bool composes = GetParam() == "neox";
  for (const auto& entry : golden()["texts"]) {
    const auto text = entry[1].get<std::string>();
    const std::string decoded = tokenizer.decode(tokenizer.encode(text));
    EXPECT_EQ(composes ? data::to_nfc(decoded) : decoded, composes ? data::to_nfc(text) : text) << entry[0];
  }
}

std::string name_of(const ::testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Golden, Shape,
                         ::testing::Values("gpt2", "tiny", "llama3", "neox", "digits", "removed", "literal"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Golden, RoundTrip,
                         ::testing::Values("gpt2", "tiny", "llama3", "neox", "digits", "literal"), name_of);

TEST(Gpt2, HasItsVocabulary) {
  const Tokenizer tokenizer = load_gpt2();
  EXPECT_EQ(tokenizer.vocab_size(), 50257);
  EXPECT_EQ(tokenizer.end_of_text(), 50256);
  EXPECT_EQ(tokenizer.id_of(" the"), 262);
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.encode("Hello, world!"), (std::vector<int32_t>{15496, 11, 995, 0}));
  EXPECT_EQ(tokenizer.vocabulary().fingerprint, 0x874651d81939dd0cU);  // token files on disk depend on it
}

TEST(Tokenizer, MayBeUsedFromSeveralThreads) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "/tiny.json");
  std::string text;
  for (const auto& entry : golden()["texts"]) text += entry[1].get<std::string>();
  const auto alone = tokenizer.encode(text);
  std::vector<std::vector<int32_t>> together(4);
  std::vector<std::thread> threads;
  for (auto& ids : together) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : together) EXPECT_EQ(ids, alone);
}

TEST(Tokenizer, HandsOverLongTextsInPieces) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "/tiny.json");
  std::string text;
  for (int i = 0; i < 60000; ++i) text += "word" + std::to_string(i) + (i % 7 == 0 ? "\n" : " ");
  std::vector<int32_t> joined;
  size_t pieces = 0, largest = 0;
  tokenizer.encode_to(
      [&](std::span<const int32_t> ids) {
        joined.insert(joined.end(), ids.begin(), ids.end());
        largest = std::max(largest, ids.size());
        ++pieces;
      },
      text);
  EXPECT_GT(pieces, 2U);
  EXPECT_LT(largest, 40000U);
  EXPECT_EQ(joined, tokenizer.encode(text));
  EXPECT_EQ(tokenizer.decode(joined), text);
}

// More distinct words than the cache holds, each twice in different company.
TEST(Tokenizer, ForgettingWordsChangesNothing) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "/tiny.json");
  std::string many;
  for (int i = 0; i < 150000; ++i)
    many += " w" + std::string(1, static_cast<char>('a' + i % 26)) + std::to_string(i);
  const std::string probe = " printf watermelon striking";
  const auto before = tokenizer.encode(probe);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(many)), many);
  EXPECT_EQ(tokenizer.encode(probe), before);
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "/tiny.json");
  expect_error(ErrorKind::Corrupt, {"book.txt", "byte 5", "UTF-8"},
               [&] { tokenizer.encode("plain\xff", "book.txt"); });
  expect_error(ErrorKind::Usage, {"id 99999"}, [&] { tokenizer.decode(std::vector<int32_t>{99999}); });
}

// A quadratic merge would take hours here.
TEST(Tokenizer, LongWordsAreNotQuadratic) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "/tiny.json");
  std::string word;
  std::mt19937 random(3);
  while (word.size() < 3'000'000) word += static_cast<char>('a' + random() % 26);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(word)), word);
  const std::string spaces(3'000'000, ' ');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(spaces)), spaces);
}

// Joins the pair of lowest rank, leftmost first, looking at all pairs each time.
std::vector<int32_t> slow_bpe(const data::TokenizerSpec& spec, const data::Bpe& bpe,
                              const std::string& word) {
  std::vector<std::string> parts;
  for (char c : word) parts.emplace_back(1, c);
  for (;;) {
    size_t best_rank = spec.merges.size(), best_at = 0;
    for (size_t at = 0; at + 1 < parts.size(); ++at) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (spec.merges[rank].left == parts[at] && spec.merges[rank].right == parts[at + 1])
          best_rank = rank, best_at = at;
      }
    }
    if (best_rank == spec.merges.size()) break;
    parts[best_at] += parts[best_at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
  std::vector<int32_t> ids;
  for (const auto& part : parts) ids.push_back(*bpe.id_of(part));
  return ids;
}

TEST(Bpe, EqualsTheSlowAlgorithm) {
  const auto spec = data::read_tokenizer_spec(kGolden + "/tiny.json");
  const data::Bpe bpe(spec);
  data::Bpe::Scratch scratch;
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    std::string word;  // of printable ASCII, where spelling and bytes are the same
    const size_t length = 1 + random() % 30;
    while (word.size() < length) word += "etaoinshr_self()=10.,"[random() % 21];
    std::vector<int32_t> ids;
    bpe.encode_word(word, scratch, ids);
    EXPECT_EQ(ids, slow_bpe(spec, bpe, word)) << word;
  }
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 and plain text"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("0123456789\x80"), 10U);
  EXPECT_EQ(find_invalid_utf8("\xe2\x82"), 0U);
  EXPECT_EQ(find_invalid_utf8("\xc3\xa9\xed\xa0\x80"), 2U);  // surrogate
  EXPECT_EQ(find_invalid_utf8("x\xc0\x80"), 1U);             // overlong
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0U);      // above U+10FFFF
}

// Every sequence of three bytes: valid exactly when it is made of encodings of code points.
TEST(Utf8, AgreesWithTheEncodingOfEveryCodePoint) {
  std::vector<bool> two(1 << 16), three(1 << 24);
  for (char32_t c = 0; c < 0x10000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string bytes;
    data::append_code_point(bytes, c);
    uint32_t key = 0;
    for (char b : bytes) key = key << 8 | static_cast<uint8_t>(b);
    if (bytes.size() == 2) two[key] = true;
    if (bytes.size() == 3) three[key] = true;
  }
  for (uint32_t key = 0; key < 1 << 24; ++key) {
    const char bytes[3] = {static_cast<char>(key >> 16), static_cast<char>(key >> 8), static_cast<char>(key)};
    const bool a = key >> 16 < 0x80, b = (key >> 8 & 0xff) < 0x80, c = (key & 0xff) < 0x80;
    const bool valid = (a && b && c) || (a && two[key & 0xffff]) || (two[key >> 8] && c) || three[key];
    ASSERT_EQ(!find_invalid_utf8({bytes, 3}).has_value(), valid) << std::hex << key;
  }
}

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(data::to_nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(data::to_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(data::to_nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(data::to_nfc("\u212b \u0958"), "\u00c5 \u0915\u093c");  // a singleton; an excluded composition
  EXPECT_EQ(data::to_nfc("a\u0315\u0300\u05ae\u0300b"), "\u00e0\u05ae\u0300\u0315b");
  EXPECT_EQ(data::to_nfc("plain \u00e9 text"), "plain \u00e9 text");
}

std::vector<std::string> split(const data::Splitter& splitter, std::string_view text) {
  data::Splitter::Matcher matcher(splitter);
  matcher.start(text);
  std::vector<std::string> pieces;
  for (auto piece = matcher.next(); !piece.empty(); piece = matcher.next()) pieces.emplace_back(piece);
  return pieces;
}

TEST(Splitter, KeepsWhatItsBehaviorSays) {
  using Pieces = std::vector<std::string>;
  const auto make = [](data::SplitBehavior behavior) { return data::Splitter("[0-9]+", behavior, "here"); };
  EXPECT_EQ(split(make(data::SplitBehavior::Isolated), "a12b3"), (Pieces{"a", "12", "b", "3"}));
  EXPECT_EQ(split(make(data::SplitBehavior::RemoveMatch), "a12b3c"), (Pieces{"a", "b", "c"}));
  EXPECT_EQ(split(make(data::SplitBehavior::KeepMatch), "a12b3c"), (Pieces{"12", "3"}));
  EXPECT_EQ(split(make(data::SplitBehavior::Isolated), ""), Pieces{});
  EXPECT_EQ(split(make(data::SplitBehavior::Isolated), "none"), Pieces{"none"});
}

TEST(Splitter, RefusesWhatItWouldReadOtherwise) {
  for (const char* pattern :
       {R"(\w+)", R"(\bx)", "[a[bc]]", "[a&&b]", "(?m:.)", "a{2}+", "a{2}?", "a{,3}", R"(\h)", "(*UTF)a",
        R"(\xff)", "[a", "a(", R"(\p{Nonsense})", "a*", R"((?=(\d{3})+))"}) {
    expect_error(ErrorKind::Unsupported, {"here"},
                 [&] { data::Splitter(pattern, data::SplitBehavior::Isolated, "here"); });
  }
}

}  // namespace
}  // namespace zero

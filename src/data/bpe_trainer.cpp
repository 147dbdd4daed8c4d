#include "zero/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "data/byte_level.h"
#include "data/splitter.h"
#include "data/tokenizer_spec.h"
#include "data/unicode.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

using Pair = std::pair<int32_t, int32_t>;

struct HashPair {
  size_t operator()(const Pair& pair) const {
    const uint64_t both =
        static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32 | static_cast<uint32_t>(pair.second);
    return (both ^ both >> 29) * 0x9e3779b97f4a7c15u;
  }
};

struct TrainingWord {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

/// A pair as it was counted when it was queued; the count may have changed since.
struct QueuedPair {
  int64_t count;
  Pair pair;
  bool operator<(const QueuedPair& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

// The alphabet in the order of its spellings' code points, as `tokenizers` numbers it.
std::vector<std::string> first_spellings() {
  std::vector<std::pair<char32_t, std::string>> letters;
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    std::string spelling = data::spelling_of_bytes({&value, 1});
    letters.emplace_back(data::code_point_at(spelling, 0).value, spelling);
  }
  std::ranges::sort(letters);
  std::vector<std::string> spellings{std::string(kEndOfText)};
  for (auto& letter : letters) spellings.push_back(std::move(letter.second));
  return spellings;
}

class Merging {
 public:
  explicit Merging(const std::map<std::string, int64_t, std::less<>>& counts)
      : spellings_(first_spellings()) {
    std::array<int32_t, 256> letter{};
    for (size_t id = 1; id < spellings_.size(); ++id) {
      ids_.emplace(spellings_[id], static_cast<int32_t>(id));
      letter[static_cast<uint8_t>(data::bytes_of_spelling(spellings_[id])->front())] =
          static_cast<int32_t>(id);
    }
    for (const auto& [text, count] : counts) {
      TrainingWord& word = words_.emplace_back();
      word.count = count;
      for (const char byte : text) word.symbols.push_back(letter[static_cast<uint8_t>(byte)]);
    }
    for (size_t at = 0; at < words_.size(); ++at)
      for (size_t i = 0; i + 1 < words_[at].symbols.size(); ++i)
        count({words_[at].symbols[i], words_[at].symbols[i + 1]}, words_[at].count, at);
    queue_changed();
  }

  void run(int64_t vocab_size) {
    while (std::ssize(spellings_) < vocab_size && !queue_.empty()) {
      const QueuedPair top = queue_.top();
      queue_.pop();
      const int64_t now = counts_[top.pair];
      if (now < 2) continue;
      if (now != top.count)
        queue_.push({now, top.pair});
      else
        join(top.pair);
    }
  }

  const std::vector<std::string>& spellings() const { return spellings_; }
  const std::vector<Pair>& merges() const { return merges_; }

 private:
  void count(const Pair& pair, int64_t by, size_t word) {
    counts_[pair] += by;
    if (by < 0) return;
    places_[pair].push_back(word);
    changed_.push_back(pair);
  }

  void queue_changed() {
    std::ranges::sort(changed_);
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair& pair : changed_)
      if (counts_[pair] > 0) queue_.push({counts_[pair], pair});
    changed_.clear();
  }

  // Two ways to one text, as a+bc and ab+c, are one token.
  int32_t id_of(const std::string& spelling) {
    const auto [found, is_new] = ids_.emplace(spelling, static_cast<int32_t>(spellings_.size()));
    if (is_new) spellings_.push_back(spelling);
    return found->second;
  }

  void join(const Pair& pair) {
    const int32_t joined = id_of(spellings_[pair.first] + spellings_[pair.second]);
    merges_.push_back(pair);
    const std::vector<size_t> places = std::move(places_[pair]);
    places_.erase(pair);
    for (const size_t at : places) join_in(at, pair, joined);
    counts_.erase(pair);
    queue_changed();
  }

  // A word that is listed twice no longer has the pair the second time.
  void join_in(size_t at, const Pair& pair, int32_t joined) {
    TrainingWord& word = words_[at];
    std::vector<int32_t>& symbols = word.symbols;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (symbols[i] != pair.first || symbols[i + 1] != pair.second) continue;
      if (i > 0) {
        count({symbols[i - 1], pair.first}, -word.count, at);
        count({symbols[i - 1], joined}, word.count, at);
      }
      if (i + 2 < symbols.size()) {
        count({pair.second, symbols[i + 2]}, -word.count, at);
        count({joined, symbols[i + 2]}, word.count, at);
      }
      symbols[i] = joined;
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }

  std::vector<std::string> spellings_;            // by id
  std::unordered_map<std::string, int32_t> ids_;  // by spelling
  std::vector<TrainingWord> words_;
  std::unordered_map<Pair, int64_t, HashPair> counts_;
  std::unordered_map<Pair, std::vector<size_t>, HashPair> places_;  // words that have or had the pair
  std::priority_queue<QueuedPair> queue_;
  std::vector<Pair> changed_;
  std::vector<Pair> merges_;
};

std::string tokenizer_json(const std::vector<std::string>& spellings, const std::vector<Pair>& merges) {
  using Json = nlohmann::ordered_json;
  const auto byte_level = [](bool prefix) {
    return Json{
        {"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", true}};
  };
  Json vocabulary = Json::object();
  for (size_t id = 0; id < spellings.size(); ++id) vocabulary[spellings[id]] = id;
  Json joined = Json::array();
  for (const auto& [left, right] : merges) joined.push_back(spellings[left] + " " + spellings[right]);
  const Json end = {{"id", 0},         {"content", kEndOfText}, {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false},   {"special", true}};
  const Json all = {{"version", "1.0"},
                    {"truncation", nullptr},
                    {"padding", nullptr},
                    {"added_tokens", Json::array({end})},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", byte_level(false)},
                    {"post_processor", nullptr},
                    {"decoder", byte_level(true)},
                    {"model",
                     {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false},
                      {"vocab", std::move(vocabulary)},
                      {"merges", std::move(joined)}}}};
  return all.dump() + "\n";
}

}  // namespace

struct BpeTrainer::Impl {
  data::Splitter splitter{data::kGpt2Pattern, data::SplitBehavior::Isolated, "BpeTrainer"};
  std::map<std::string, int64_t, std::less<>> counts;  // ordered, so that nothing depends on hashing
};

BpeTrainer::BpeTrainer() : impl_(std::make_unique<Impl>()) {}
BpeTrainer::~BpeTrainer() = default;
BpeTrainer::BpeTrainer(BpeTrainer&&) noexcept = default;
BpeTrainer& BpeTrainer::operator=(BpeTrainer&&) noexcept = default;

void BpeTrainer::add(std::string_view text, std::string_view place) {
  require_utf8(text, place);
  std::unordered_map<std::string_view, int64_t> here;
  data::Splitter::Matcher matcher(impl_->splitter);
  matcher.start(text);
  for (std::string_view word = matcher.next(); !word.empty(); word = matcher.next()) ++here[word];
  for (const auto& [word, count] : here) impl_->counts[std::string(word)] += count;
}

std::string BpeTrainer::train(int64_t vocab_size) const {
  require(vocab_size >= kFewestTokens && vocab_size <= data::kMostTokens, ErrorKind::Config, "vocabulary",
          "expected " + std::to_string(kFewestTokens) + " to " + std::to_string(data::kMostTokens) +
              " tokens, got " + std::to_string(vocab_size));
  Merging merging(impl_->counts);
  merging.run(vocab_size);
  return tokenizer_json(merging.spellings(), merging.merges());
}

}  // namespace zero

#include "zero/tokenizer.h"

#include <mutex>

#include "base/utf8.h"
#include "data/added_tokens.h"
#include "data/bpe.h"
#include "data/nfc.h"
#include "data/splitter.h"
#include "data/tokenizer_impl.h"
#include "data/tokenizer_spec.h"
#include "data/word_cache.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr size_t kSinkIds = 1 << 15;

// What one call of encode needs; kept between calls for the sake of the cache.
struct Worker {
  std::vector<data::Splitter::Matcher> matchers;
  data::WordCache cache;
  data::Bpe::Scratch scratch;
  std::vector<int32_t> ids;
};

class BytePairs : public Tokenizer::Impl {
 public:
  explicit BytePairs(const data::TokenizerSpec& spec);
  void encode(std::string_view text, const Sink& sink) const override;
  const std::string* bytes_of(int32_t id) const override { return bpe.bytes_of(id); }
  const Vocabulary& vocabulary() const override { return bpe.vocabulary(); }
  std::optional<int32_t> id_of(std::string_view bytes) const override { return bpe.id_of(bytes); }

 private:
  data::Bpe bpe;
  std::vector<data::Splitter> splitters;
  data::TokenFinder raw_tokens, normalized_tokens;
  bool nfc;

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Worker>> idle;

  std::unique_ptr<Worker> take_worker() const;
  void give_worker(std::unique_ptr<Worker> worker) const;
  void encode(std::string_view text, Worker& worker, const Sink& sink) const;
  void encode_normalized(std::string_view text, Worker& worker, const Sink& sink) const;
  void encode_plain(std::string_view text, size_t step, Worker& worker, const Sink& sink) const;
  void encode_word(std::string_view word, Worker& worker) const;
};

BytePairs::BytePairs(const data::TokenizerSpec& spec) : bpe(spec), nfc(spec.nfc) {
  specials = spec.specials;
  for (const auto& rule : spec.splits) {
    splitters.emplace_back(rule.pattern, rule.behavior, rule.place);
  }
  for (const auto& token : spec.added) {
    if (token.normalized) {
      normalized_tokens.add(nfc ? data::to_nfc(token.content) : token.content, token.id);
    } else {
      raw_tokens.add(token.content, token.id);
    }
  }
}

std::unique_ptr<Worker> BytePairs::take_worker() const {
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) {
      auto worker = std::move(idle.back());
      idle.pop_back();
      return worker;
    }
  }
  auto worker = std::make_unique<Worker>();
  for (const auto& splitter : splitters) worker->matchers.emplace_back(splitter);
  return worker;
}

void BytePairs::give_worker(std::unique_ptr<Worker> worker) const {
  const std::lock_guard lock(mutex);
  idle.push_back(std::move(worker));
}

// Calls `plain` for the text between the tokens that `finder` finds and `token` for their ids.
template <class Plain, class Token>
void split_at_tokens(const data::TokenFinder& finder, std::string_view text, Plain plain, Token token) {
  size_t at = 0;
  while (at < text.size()) {
    const auto match =
        finder.empty() ? data::TokenFinder::Match{text.size(), text.size(), -1} : finder.find(text, at);
    if (match.begin > at) plain(text.substr(at, match.begin - at));
    if (match.id >= 0) token(match.id);
    at = match.end;
  }
}

void BytePairs::encode(std::string_view text, Worker& worker, const Sink& sink) const {
  split_at_tokens(
      raw_tokens, text,
      [&](std::string_view plain) {
        if (nfc && !data::is_trivially_nfc(plain)) {
          encode_normalized(data::to_nfc(plain), worker, sink);
        } else {
          encode_normalized(plain, worker, sink);
        }
      },
      [&](int32_t id) { worker.ids.push_back(id); });
  sink(worker.ids);
  worker.ids.clear();
}

void BytePairs::encode_normalized(std::string_view text, Worker& worker, const Sink& sink) const {
  split_at_tokens(
      normalized_tokens, text, [&](std::string_view plain) { encode_plain(plain, 0, worker, sink); },
      [&](int32_t id) { worker.ids.push_back(id); });
}

// Text without tokens in it: through splitter `step` and those after it, then word by word.
void BytePairs::encode_plain(std::string_view text, size_t step, Worker& worker, const Sink& sink) const {
  if (step == splitters.size()) {
    encode_word(text, worker);
    if (worker.ids.size() >= kSinkIds) {
      sink(worker.ids);
      worker.ids.clear();
    }
    return;
  }
  auto& matcher = worker.matchers[step];
  matcher.start(text);
  for (auto piece = matcher.next(); !piece.empty(); piece = matcher.next()) {
    encode_plain(piece, step + 1, worker, sink);
  }
}

void BytePairs::encode_word(std::string_view word, Worker& worker) const {
  const uint64_t hash = data::WordCache::hash_of(word);
  if (const auto known = worker.cache.find(word, hash)) {
    worker.ids.insert(worker.ids.end(), known->begin(), known->end());
    return;
  }
  const size_t before = worker.ids.size();
  bpe.encode_word(word, worker.scratch, worker.ids);
  worker.cache.put(word, hash, std::span(worker.ids).subspan(before));
}

void BytePairs::encode(std::string_view text, const Sink& sink) const {
  auto worker = take_worker();
  encode(text, *worker, sink);
  give_worker(std::move(worker));
}

}  // namespace

namespace {

std::shared_ptr<Tokenizer::Impl> load_kind(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  if (path.extension() == ".model" && !is_directory) return data::load_sentencepiece(path);
  // Beside a SentencePiece model, tokenizer.json says the same in another way, which is not read but for the
  // tokens around a text.
  const bool sentencepiece = std::filesystem::exists(path / "tokenizer.model", ignored);
  const std::shared_ptr<Tokenizer::Impl> impl =
      sentencepiece ? data::load_sentencepiece(path / "tokenizer.model")
                    : std::make_shared<BytePairs>(data::read_tokenizer_spec(path));
  const bool own_specials = !is_directory || std::filesystem::exists(path / "tokenizer.json", ignored);
  if (own_specials && !sentencepiece) return impl;  // read with the rest
  const std::string_view begin = sentencepiece ? "<s>" : "<|endoftext|>",
                         end = sentencepiece ? "</s>" : "<|endoftext|>";
  impl->specials = data::special_tokens_beside(path, begin, end,
                                               [&](std::string_view bytes) { return impl->id_of(bytes); });
  return impl;
}

}  // namespace

bool Tokenizer::is_in(const std::filesystem::path& directory) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.model", "tokenizer.json", "vocab.json"})
    if (std::filesystem::exists(directory / name, ignored)) return true;
  return false;
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::shared_ptr<Impl> impl = load_kind(path);
  for (const auto* side : {&impl->specials.before, &impl->specials.after})
    for (const int32_t id : *side)
      require(impl->bytes_of(id) != nullptr, ErrorKind::Corrupt, path.string(),
              "the token " + std::to_string(id) + " around a text is not in the vocabulary");
  return Tokenizer(impl);
}

std::vector<int32_t> Tokenizer::encode_with_specials(std::string_view text, std::string_view place) const {
  std::vector<int32_t> ids = impl_->specials.before;
  encode_to([&](std::span<const int32_t> more) { ids.insert(ids.end(), more.begin(), more.end()); }, text,
            place);
  ids.insert(ids.end(), impl_->specials.after.begin(), impl_->specials.after.end());
  return ids;
}

void Tokenizer::encode_to(const std::function<void(std::span<const int32_t>)>& sink, std::string_view text,
                          std::string_view place) const {
  require_utf8(text, place);
  impl_->encode(text, sink);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, std::string_view place) const {
  std::vector<int32_t> ids;
  encode_to([&](std::span<const int32_t> more) { ids.insert(ids.end(), more.begin(), more.end()); }, text,
            place);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) {
    const std::string* bytes = impl_->bytes_of(id);
    if (bytes == nullptr) {
      fail(ErrorKind::Usage, "Tokenizer::decode",
           "id " + std::to_string(id) + " is no token of this vocabulary of " + std::to_string(vocab_size()));
    }
    text += *bytes;
  }
  return text;
}

const Vocabulary& Tokenizer::vocabulary() const { return impl_->vocabulary(); }

std::optional<int32_t> Tokenizer::id_of(std::string_view bytes) const { return impl_->id_of(bytes); }

std::optional<int32_t> Tokenizer::end_of_text() const {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (const auto id = id_of(name)) return id;
  }
  return std::nullopt;
}

}  // namespace zero

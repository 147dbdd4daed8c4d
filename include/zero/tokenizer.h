#pragma once
// Text to token ids and back: byte-level BPE with the vocabularies of GPT-2, Llama 3 and GPT-NeoX, and
// SentencePiece with those of Llama and Llama 2.
//
// Ids equal those of Hugging Face's `tokenizers` package for encode(text, add_special_tokens=False). Added
// and special tokens that stand in the text become their ids. post_processor, truncation and padding of a
// tokenizer.json say how model inputs are put together, not what a text's tokens are, and are not applied.
// Ids of SentencePiece models equal those of its Python package: control tokens such as </s> that stand in
// the text are text.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

/// What a token file remembers of the vocabulary that made it.
struct Vocabulary {
  int64_t size = 0;          // highest id + 1
  uint64_t fingerprint = 0;  // XXH3 over all (id, token) pairs in order of ids

  bool operator==(const Vocabulary&) const = default;
};

/// Immutable and cheap to copy. Every function may be called from several threads at once.
class Tokenizer {
 public:
  /// Reads `path`: a tokenizer.json, a SentencePiece model NAME.model, or a directory that holds
  /// tokenizer.model, or else tokenizer.json, or else vocab.json and merges.txt. Throws Io (cannot be read),
  /// Corrupt (not what the format demands; names file and entry) or Unsupported (a model type, normalizer,
  /// pre-tokenizer or option other than byte-level BPE's; names it).
  static Tokenizer load(const std::filesystem::path& path);

  /// True where `directory` holds a file that load() would begin with.
  static bool is_in(const std::filesystem::path& directory);

  /// The ids of `text`. Throws Corrupt with the byte offset when it is not UTF-8; `place` (a file name) is
  /// put before the message.
  std::vector<int32_t> encode(std::string_view text, std::string_view place = {}) const;

  /// As encode, with the special tokens around the text that the tokenizer's files ask for, such as a
  /// begin-of-text token: the ids of transformers' tokenizer(text). Those of tokenizer.json's post_processor,
  /// else, in a directory without tokenizer.json, tokenizer_config.json's add_bos_token and add_eos_token.
  std::vector<int32_t> encode_with_specials(std::string_view text, std::string_view place = {}) const;

  /// As encode, but hands the ids over in pieces of some ten thousand, so that a long text needs no long
  /// vector.
  void encode_to(const std::function<void(std::span<const int32_t>)>& sink, std::string_view text,
                 std::string_view place = {}) const;

  /// The bytes that the ids stand for. A cut-off sequence of ids may end inside a UTF-8 character. The space
  /// that SentencePiece puts before a text stays; control tokens stand for nothing there. Throws Usage for an
  /// id that is no token.
  std::string decode(std::span<const int32_t> ids) const;

  /// Highest id + 1: the rows an embedding needs. A few ids below it may be no token.
  int64_t vocab_size() const { return vocabulary().size; }

  const Vocabulary& vocabulary() const;

  /// The id of the token that stands for these bytes (" the", "<|endoftext|>"); nothing when there is none.
  std::optional<int32_t> id_of(std::string_view bytes) const;

  /// The token that ends a document: <|endoftext|>, <|end_of_text|>, </s> or <eos>, the first that is in the
  /// vocabulary.
  std::optional<int32_t> end_of_text() const;

  struct Impl;  // a kind of tokenizer

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace zero

#pragma once
// What the kinds of tokenizers implement.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/special_tokens.h"
#include "zero/tokenizer.h"

namespace zero {

struct Tokenizer::Impl {
  using Sink = std::function<void(std::span<const int32_t>)>;

  virtual ~Impl() = default;
  /// `text` is UTF-8.
  virtual void encode(std::string_view text, const Sink& sink) const = 0;
  /// nullptr: no token.
  virtual const std::string* bytes_of(int32_t id) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  virtual std::optional<int32_t> id_of(std::string_view bytes) const = 0;

  data::SpecialTokens specials;  // around a text
};

namespace data {

/// A SentencePiece model. Throws Io, and Corrupt where it is none.
std::shared_ptr<Tokenizer::Impl> load_sentencepiece(const std::filesystem::path& path);

/// Of the spellings by id; what is no token is left out.
Vocabulary vocabulary_of(const std::vector<std::optional<std::string>>& spellings);

}  // namespace data
}  // namespace zero

#pragma once
// A vocabulary for a text: byte-level BPE, trained as Hugging Face's `tokenizers` does, to a tokenizer.json.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace zero {

/// Counts the words of texts, then joins the pair of neighbouring symbols that is most frequent, again and
/// again (Sennrich et al. 2016; on bytes and with GPT-2's splitting into words, Radford et al. 2019). Of
/// equally frequent pairs the one of the lower ids is joined, so the result depends on the texts alone. The
/// joined pairs are those of BpeTrainer in `tokenizers` with ByteLevel's alphabet, as long as pairs occur
/// twice. Holds each word that occurs once. Not for several threads.
class BpeTrainer {
 public:
  /// The tokens that every vocabulary has: <|endoftext|>, id 0, and the 256 bytes.
  static constexpr int64_t kFewestTokens = 257;

  BpeTrainer();
  ~BpeTrainer();
  BpeTrainer(BpeTrainer&&) noexcept;
  BpeTrainer& operator=(BpeTrainer&&) noexcept;

  /// Throws Corrupt with the byte offset where `text` is not UTF-8; `place` (a file name) is put before it.
  void add(std::string_view text, std::string_view place = {});

  /// The text of a tokenizer.json of at most `vocab_size` tokens, of fewer where no pair occurs twice any
  /// more. Throws Config for less than kFewestTokens or more than 2^21.
  std::string train(int64_t vocab_size) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zero

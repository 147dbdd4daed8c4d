#pragma once
// Byte-pair encoding of one word: starting from bytes, the adjacent pair whose merge was learnt first is
// joined, leftmost first, until no pair is in the table (Sennrich et al. 2016; on bytes, Radford et al.
// 2019).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer_spec.h"
#include "zero/tokenizer.h"

namespace zero::data {

/// Vocabulary and merges. Immutable after construction.
class Bpe {
 public:
  /// Working memory of encode_word; one a thread.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous, next;  // -1: none
    };
    struct Candidate {
      int32_t rank, at, joined;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  /// Checks the spec: ids unique and in range, merges of known tokens, a token for every byte of UTF-8 text.
  /// Throws Corrupt (file and entry) or Unsupported.
  explicit Bpe(const TokenizerSpec& spec);

  /// Appends the ids of `word` (valid UTF-8). Time n log n in its length.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  /// The bytes of a token; null for an id that is none.
  const std::string* bytes_of(int32_t id) const;

  std::optional<int32_t> id_of(std::string_view bytes) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    int32_t rank, joined;
  };
  struct MixPair {
    size_t operator()(uint64_t pair) const { return (pair ^ pair >> 29) * 0x9e3779b97f4a7c15u; }
  };

  void add_vocab(const TokenizerSpec& spec);
  void add_added_tokens(const TokenizerSpec& spec);
  void add_merges(const TokenizerSpec& spec);
  void set_byte_ids(const TokenizerSpec& spec);
  const Merge* merge_of(int32_t left, int32_t right) const;
  void merge_all(Scratch& scratch) const;
  void consider(Scratch& scratch, int32_t at) const;

  std::vector<std::optional<std::string>> spellings_;  // by id, as the files write them
  std::vector<std::optional<std::string>> bytes_;      // by id
  std::unordered_map<std::string, int32_t> ids_;       // by spelling while reading, model vocabulary only
  std::unordered_map<std::string, int32_t> words_;     // by bytes
  std::unordered_map<std::string, int32_t> added_;     // by content
  std::unordered_map<uint64_t, Merge, MixPair> merges_;
  int32_t byte_ids_[256];
  bool ignore_merges_;
  Vocabulary vocabulary_;
};

}  // namespace zero::data

#pragma once
// What the files of a tokenizer say, in one form whatever file it came from. Syntax is checked here, meaning
// in Bpe.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/special_tokens.h"
#include "data/splitter.h"

namespace zero::data {

struct VocabEntry {
  std::string spelling;  // byte-level
  int32_t id;
};

struct MergeEntry {
  std::string left, right;  // byte-level spellings
  int64_t entry;            // line or index in the file, for errors
};

struct AddedToken {
  std::string content;
  int32_t id;
  bool normalized;  // looked for in the normalised text
};

struct SplitRule {
  std::string pattern;
  SplitBehavior behavior;
  std::string place;
};

struct TokenizerSpec {
  std::string vocab_place, merges_place, added_place;  // file and section, for errors
  std::vector<VocabEntry> vocab;
  std::vector<MergeEntry> merges;  // in order of rank
  std::vector<AddedToken> added;
  std::vector<SplitRule> splits;  // applied one after the other
  SpecialTokens specials;         // of tokenizer.json; a pair of files says nothing of them
  bool nfc = false;
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
};

/// Ids at or above this are refused: a bound on what a hostile file can make the reader allocate.
inline constexpr int64_t kMostTokens = int64_t{1} << 21;

/// As Tokenizer::load. Throws Io, Corrupt or Unsupported.
TokenizerSpec read_tokenizer_spec(const std::filesystem::path& path);

}  // namespace zero::data

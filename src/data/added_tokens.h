#pragma once
// Tokens that are looked for in the text before it is split: special tokens, and the runs of spaces of
// GPT-NeoX.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace zero::data {

/// Finds the leftmost of a set of tokens, and of those that start there the longest.
class TokenFinder {
 public:
  struct Match {
    size_t begin = 0, end = 0;
    int32_t id = -1;  // -1: none from the start of the search on
  };

  void add(std::string_view token, int32_t id);

  bool empty() const { return ids_.size() == 1; }

  /// The first match in `text` that begins at `from` or later.
  Match find(std::string_view text, size_t from) const;

 private:
  // A trie: node 0 is the root, ids_[node] the token that ends there or -1.
  std::vector<int32_t> ids_{-1};
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte
  bool starts_[256] = {};
};

}  // namespace zero::data

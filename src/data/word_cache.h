#pragma once
// Remembers the ids of words already encoded: most words of a text come again, and a look-up costs less than
// merging.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::data {

/// A hash table of bounded size that forgets everything when it is full. Not for several threads.
class WordCache {
 public:
  /// The ids put for `word`, valid until the next put; nothing when it is not known. `hash` is hash_of(word).
  std::optional<std::span<const int32_t>> find(std::string_view word, uint64_t hash) const;

  /// Remembers `ids` for a word that find() does not know. Long words are not kept.
  void put(std::string_view word, uint64_t hash, std::span<const int32_t> ids);

  static uint64_t hash_of(std::string_view word);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t word_at = 0, ids_at = 0;
    uint16_t word_length = 0, id_count = 0;  // word_length 0: free
  };

  void clear();

  std::vector<Slot> slots_;
  std::string words_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

}  // namespace zero::data

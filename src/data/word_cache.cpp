#include "data/word_cache.h"

#include <xxhash.h>

namespace zero::data {
namespace {
constexpr size_t kSlots = 1 << 18, kMostUsed = kSlots / 2, kLongestWord = 128;
}  // namespace

uint64_t WordCache::hash_of(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

std::optional<std::span<const int32_t>> WordCache::find(std::string_view word, uint64_t hash) const {
  if (slots_.empty()) return std::nullopt;
  for (size_t i = hash % kSlots; slots_[i].word_length != 0; i = (i + 1) % kSlots) {
    const Slot& slot = slots_[i];
    if (slot.hash == hash && std::string_view(words_.data() + slot.word_at, slot.word_length) == word) {
      return std::span(ids_).subspan(slot.ids_at, slot.id_count);
    }
  }
  return std::nullopt;
}

void WordCache::put(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kLongestWord) return;
  if (slots_.empty()) slots_.resize(kSlots);
  if (used_ == kMostUsed) clear();
  size_t i = hash % kSlots;
  while (slots_[i].word_length != 0) i = (i + 1) % kSlots;
  slots_[i] = {hash, static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(ids_.size()),
               static_cast<uint16_t>(word.size()), static_cast<uint16_t>(ids.size())};
  words_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

void WordCache::clear() {
  slots_.assign(kSlots, {});
  words_.clear();
  ids_.clear();
  used_ = 0;
}

}  // namespace zero::data

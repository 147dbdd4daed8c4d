#include "data/added_tokens.h"

namespace zero::data {
namespace {
uint64_t edge(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<uint8_t>(byte); }
}  // namespace

void TokenFinder::add(std::string_view token, int32_t id) {
  if (token.empty()) return;
  starts_[static_cast<uint8_t>(token[0])] = true;
  uint32_t node = 0;
  for (char byte : token) {
    const auto [next, added] = edges_.try_emplace(edge(node, byte), static_cast<uint32_t>(ids_.size()));
    if (added) ids_.push_back(-1);
    node = next->second;
  }
  ids_[node] = id;
}

TokenFinder::Match TokenFinder::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    Match longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto next = edges_.find(edge(node, text[at]));
      if (next == edges_.end()) break;
      node = next->second;
      if (ids_[node] >= 0) longest = {begin, at + 1, ids_[node]};
    }
    if (longest.id >= 0) return longest;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace zero::data

#include "data/bpe.h"

#include <algorithm>

#include "data/byte_level.h"
#include "data/tokenizer_impl.h"
#include "zero/error.h"

namespace zero::data {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

std::string in_quotes(std::string_view text) { return '"' + std::string(text) + '"'; }

// Bytes that can stand in valid UTF-8.
bool stands_in_utf8(int byte) { return byte < 0xc0 || (byte >= 0xc2 && byte <= 0xf4); }

// A heap of the smallest rank, then the leftmost.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

Bpe::Bpe(const TokenizerSpec& spec) : ignore_merges_(spec.ignore_merges) {
  add_vocab(spec);
  add_added_tokens(spec);
  add_merges(spec);
  set_byte_ids(spec);
  vocabulary_ = vocabulary_of(spellings_);
  ids_.clear();
}

void Bpe::add_vocab(const TokenizerSpec& spec) {
  int64_t rows = 0;
  for (const auto& entry : spec.vocab) rows = std::max<int64_t>(rows, int64_t{entry.id} + 1);
  for (const auto& token : spec.added) rows = std::max<int64_t>(rows, int64_t{token.id} + 1);
  spellings_.resize(rows);
  bytes_.resize(rows);
  for (const auto& [spelling, id] : spec.vocab) {
    if (spellings_[id]) {
      fail(ErrorKind::Corrupt, spec.vocab_place,
           "id " + std::to_string(id) + " belongs to " + in_quotes(*spellings_[id]) + " and to " +
               in_quotes(spelling));
    }
    ids_.emplace(spelling, id);
    spellings_[id] = spelling;
    const auto bytes = bytes_of_spelling(spelling);
    if (bytes) words_.emplace(*bytes, id);
    bytes_[id] = bytes.value_or(spelling);
  }
}

void Bpe::add_added_tokens(const TokenizerSpec& spec) {
  for (const auto& token : spec.added) {
    const auto known = ids_.find(token.content);
    require(known == ids_.end() || known->second == token.id, ErrorKind::Corrupt, spec.added_place,
            "the token " + in_quotes(token.content) + " has id " + std::to_string(token.id) +
                " there and id " + std::to_string(known == ids_.end() ? -1 : known->second) +
                " in the vocabulary");
    require(!spellings_[token.id] || *spellings_[token.id] == token.content, ErrorKind::Corrupt,
            spec.added_place,
            "id " + std::to_string(token.id) + " belongs to " + in_quotes(spellings_[token.id].value_or("")) +
                " and to " + in_quotes(token.content));
    require(added_.emplace(token.content, token.id).second, ErrorKind::Corrupt, spec.added_place,
            "the token " + in_quotes(token.content) + " stands there twice");
    spellings_[token.id] = bytes_[token.id] = token.content;
  }
}

void Bpe::add_merges(const TokenizerSpec& spec) {
  merges_.reserve(spec.merges.size());
  int32_t rank = 0;
  for (const auto& merge : spec.merges) {
    const auto place = [&] { return spec.merges_place + " " + std::to_string(merge.entry); };
    const auto id = [&](const std::string& spelling) {
      const auto known = ids_.find(spelling);
      if (known == ids_.end()) {
        fail(ErrorKind::Corrupt, place(),
             "the merge names " + in_quotes(spelling) + ", which is not in the vocabulary");
      }
      return known->second;
    };
    const int32_t left = id(merge.left), right = id(merge.right), joined = id(merge.left + merge.right);
    if (!merges_.emplace(pair_key(left, right), Merge{rank++, joined}).second) {
      fail(
          ErrorKind::Corrupt, place(),
          "the merge of " + in_quotes(merge.left) + " and " + in_quotes(merge.right) + " stands there twice");
    }
  }
}

void Bpe::set_byte_ids(const TokenizerSpec& spec) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto token = words_.find(std::string(1, static_cast<char>(byte)));
    byte_ids_[byte] = token == words_.end() ? -1 : token->second;
    if (byte_ids_[byte] >= 0 || !stands_in_utf8(byte)) continue;
    fail(ErrorKind::Unsupported, spec.vocab_place,
         "it has no token for the byte " + std::to_string(byte) + ", spelled " +
             in_quotes(spelling_of_bytes(std::string(1, static_cast<char>(byte)))),
         "use a byte-level vocabulary with all bytes in it");
  }
}

const std::string* Bpe::bytes_of(int32_t id) const {
  if (id < 0 || id >= std::ssize(bytes_) || !bytes_[id]) return nullptr;
  return &*bytes_[id];
}

std::optional<int32_t> Bpe::id_of(std::string_view bytes) const {
  const std::string key(bytes);
  if (const auto token = added_.find(key); token != added_.end()) return token->second;
  if (const auto token = words_.find(key); token != words_.end()) return token->second;
  return std::nullopt;
}

const Bpe::Merge* Bpe::merge_of(int32_t left, int32_t right) const {
  const auto merge = merges_.find(pair_key(left, right));
  return merge == merges_.end() ? nullptr : &merge->second;
}

void Bpe::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  require(word.size() < (size_t{1} << 31), ErrorKind::Unsupported, "", "a word of more than 2 GiB");
  if (ignore_merges_) {
    if (const auto token = words_.find(std::string(word)); token != words_.end()) {
      ids.push_back(token->second);
      return;
    }
  }
  scratch.symbols.clear();
  const auto count = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < count; ++i) {
    scratch.symbols.push_back({byte_ids_[static_cast<uint8_t>(word[i])], i - 1, i + 1 < count ? i + 1 : -1});
  }
  merge_all(scratch);
  for (int32_t at = count > 0 ? 0 : -1; at >= 0; at = scratch.symbols[at].next)
    ids.push_back(scratch.symbols[at].id);
}

// Puts the pair that starts at `at` on the heap when it can be merged.
void Bpe::consider(Scratch& scratch, int32_t at) const {
  const auto& left = scratch.symbols[at];
  if (left.next < 0) return;
  const Merge* merge = merge_of(left.id, scratch.symbols[left.next].id);
  if (merge == nullptr) return;
  scratch.heap.push_back({merge->rank, at, merge->joined});
}

void Bpe::merge_all(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  for (int32_t at = 0; at + 1 < static_cast<int32_t>(symbols.size()); ++at) consider(scratch, at);
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](int32_t at) {
    const size_t before = heap.size();
    consider(scratch, at);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const auto best = heap.back();
    heap.pop_back();
    auto& left = symbols[best.at];
    if (left.id < 0 || left.next < 0) continue;
    auto& right = symbols[left.next];
    // A merge of a neighbour may have changed the pair since it was put on the heap.
    const Merge* merge = merge_of(left.id, right.id);
    if (merge == nullptr || merge->joined != best.joined) continue;
    left.id = best.joined;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = best.at;
    if (left.previous >= 0) push(left.previous);
    push(best.at);
  }
}

}  // namespace zero::data

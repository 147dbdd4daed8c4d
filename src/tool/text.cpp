#include "text.h"

#include <sstream>

#include "base/utf8.h"

namespace zero::tool {
namespace {

// True if some continuation makes all of `bytes` one character.
bool is_unfinished(std::string_view bytes) {
  constexpr size_t kLongest = 4;
  // The lowest and highest continuation bytes reach every character there is.
  for (const char filler : {'\x80', '\xbf'}) {
    std::string whole(bytes);
    while (whole.size() < kLongest) {
      whole += filler;
      if (!find_invalid_utf8(whole)) return true;
    }
  }
  return false;
}

}  // namespace

std::string printable(std::string_view bytes) {
  std::string text;
  while (const auto bad = find_invalid_utf8(bytes)) {
    text += bytes.substr(0, *bad);
    bytes.remove_prefix(*bad);
    if (is_unfinished(bytes)) return text;
    text += "\xef\xbf\xbd";
    bytes.remove_prefix(1);
  }
  return text.append(bytes);
}

std::string decoded(const Tokenizer& tokenizer, std::span<const int64_t> tokens) {
  std::string bytes;
  for (const int64_t token : tokens) {
    const auto id = static_cast<int32_t>(token);
    if (token < tokenizer.vocab_size()) bytes += tokenizer.decode({&id, 1});
  }
  return bytes;
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');)
    if (!word.empty()) words.push_back(word);
  return words;
}

}  // namespace zero::tool

#include "sharding/value_check.h"

#include <cstring>

namespace zero::detail {

// The sum of a sequence of bytes, eight at a time.
uint64_t check_of(const at::Tensor& values) {
  const at::Tensor held = values.cpu();
  const auto* bytes = static_cast<const char*>(held.const_data_ptr());
  const size_t words_end = held.nbytes() / sizeof(uint64_t) * sizeof(uint64_t);
  uint64_t sum = 0, word = 0;
  const auto add = [&](size_t at) {
    const uint64_t term = (word + at + 1) * 0x9e3779b97f4a7c15U;
    sum += (term ^ term >> 32) * 0xbf58476d1ce4e5b9U;
  };
  for (size_t at = 0; at < words_end; at += sizeof word) {
    std::memcpy(&word, bytes + at, sizeof word);
    add(at);
  }
  word = 0;
  std::memcpy(&word, bytes + words_end, held.nbytes() - words_end);
  add(words_end);
  return sum;
}

}  // namespace zero::detail

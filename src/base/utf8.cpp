#include "base/utf8.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {

// Length of the valid sequence at the front of `text`, 0 when there is none.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto continues = [&](size_t i) { return i < text.size() && (byte(i) & 0xc0) == 0x80; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (!continues(1)) return 0;
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) {
    if (lead == 0xe0 && byte(1) < 0xa0) return 0;   // overlong
    if (lead == 0xed && byte(1) >= 0xa0) return 0;  // surrogate
    return continues(2) ? 3 : 0;
  }
  if (lead > 0xf4) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;   // overlong
  if (lead == 0xf4 && byte(1) >= 0x90) return 0;  // above U+10FFFF
  return continues(2) && continues(3) ? 4 : 0;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const size_t length = sequence_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

void require_utf8(std::string_view text, std::string_view place) {
  if (const auto offset = find_invalid_utf8(text)) {
    fail(ErrorKind::Corrupt, place, "byte " + std::to_string(*offset) + " is not valid UTF-8",
         "convert the text to UTF-8, for example with iconv");
  }
}

}  // namespace zero

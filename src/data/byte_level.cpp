#include "data/byte_level.h"

#include <array>

#include "data/unicode.h"

namespace zero::data {
namespace {

constexpr int kSpellings = 0x144;  // one past the last character used

struct Spelling {
  std::array<char32_t, 256> character{};
  std::array<int16_t, kSpellings> byte{};
};

constexpr bool printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr Spelling make_spelling() {
  Spelling table;
  for (auto& b : table.byte) b = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = printable(byte) ? static_cast<char32_t>(byte) : next++;
    table.character[byte] = c;
    table.byte[c] = static_cast<int16_t>(byte);
  }
  return table;
}

constexpr Spelling kSpelling = make_spelling();

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t at = 0; at < spelling.size();) {
    const CodePoint c = code_point_at(spelling, at);
    if (c.value >= kSpellings || kSpelling.byte[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kSpelling.byte[c.value]));
    at += c.bytes;
  }
  return bytes;
}

std::string spelling_of_bytes(std::string_view bytes) {
  std::string spelling;
  for (char byte : bytes) append_code_point(spelling, kSpelling.character[static_cast<uint8_t>(byte)]);
  return spelling;
}

}  // namespace zero::data

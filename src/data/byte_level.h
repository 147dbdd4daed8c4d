#pragma once
// GPT-2's spelling of bytes: vocabulary files write each byte of a token as one printable character, so that
// a space is U+0120 and tokens hold no white space. Printable Latin-1 bytes stand for themselves; the other
// 68 bytes are U+0100 upwards in their order. (Radford et al. 2019, encoder.py of the released code.)

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zero::data {

/// The bytes that a byte-level spelling stands for; nothing when it holds a character that stands for no
/// byte. `spelling` must be valid UTF-8.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

/// The byte-level spelling of `bytes`.
std::string spelling_of_bytes(std::string_view bytes);

}  // namespace zero::data

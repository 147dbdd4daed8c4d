#pragma once
// UTF-8 as the Unicode Standard defines it (table 3-7): no overlong forms, no surrogates, nothing above
// U+10FFFF.

#include <cstddef>
#include <optional>
#include <string_view>

namespace zero {

/// Offset of the first byte that starts no valid UTF-8 sequence; nothing when all of `text` is valid.
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// Throws Corrupt with the offset of the first bad byte; `place` (a file name) is put before the message.
void require_utf8(std::string_view text, std::string_view place);

}  // namespace zero

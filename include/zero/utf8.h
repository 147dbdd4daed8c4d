#pragma once
// UTF-8 as the Unicode Standard defines it (table 3-7): no overlong forms, no surrogates, nothing above
// U+10FFFF.

#include <cstddef>
#include <optional>
#include <string_view>

namespace zero {

/// Offset of the first byte that starts no valid UTF-8 sequence; nothing when all of `text` is valid.
std::optional<size_t> find_invalid_utf8(std::string_view text);

}  // namespace zero

#pragma once
// Canonical composition (NFC, Unicode Standard Annex 15), which GPT-NeoX's tokenizer applies before
// splitting.

#include <string>
#include <string_view>

namespace zero::data {

/// `text` in NFC. `text` must be valid UTF-8.
std::string to_nfc(std::string_view text);

/// True when no character of `text` can be changed by NFC: every one is below U+0300. Cheap.
bool is_trivially_nfc(std::string_view text);

}  // namespace zero::data

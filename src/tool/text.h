#pragma once
// Text as a terminal gives it, and as one may be shown it.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/tokenizer.h"

namespace zero::tool {

/// Valid UTF-8: bytes that belong to no character become U+FFFD each; those of a character that is not
/// finished at the end are left out.
std::string printable(std::string_view bytes);

/// The bytes of tokens that a model made. It may have rows that are no token of the vocabulary; they stand
/// for no bytes.
std::string decoded(const Tokenizer& tokenizer, std::span<const int64_t> tokens);

/// The words of "a,b,c", without empty ones.
std::vector<std::string> words_of(const std::string& list);

}  // namespace zero::tool

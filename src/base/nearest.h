#pragma once
// "Did you mean ...?"

#include <string>
#include <string_view>
#include <vector>

namespace zero {

/// Levenshtein's distance: insertions, deletions and replacements from a to b.
size_t edit_distance(std::string_view a, std::string_view b);

/// The word with the smallest distance to `word`, the first of several; "" if there are no words.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

}  // namespace zero

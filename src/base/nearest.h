#pragma once
// "Did you mean ...?"

#include <string>
#include <string_view>
#include <vector>

namespace zero {

/// Number of edits from a to b: insert, delete, replace, swap neighbours; case counts nothing.
size_t edit_distance(std::string_view a, std::string_view b);

/// The word with the fewest edits, the first of several; "" for no words.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

}  // namespace zero

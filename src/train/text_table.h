#pragma once
// Tables for people.

#include <string>
#include <vector>

namespace zero::training {

using TextRow = std::vector<std::string>;

/// Lines without the last one's end, indented by two; the first column to the left, others to the right.
std::string table_text(const std::vector<TextRow>& rows);

}  // namespace zero::training

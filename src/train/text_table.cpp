#include "train/text_table.h"

#include <algorithm>

namespace zero::training {

std::string table_text(const std::vector<TextRow>& rows) {
  std::vector<size_t> widths;
  for (const TextRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const TextRow& row : rows) {
    text += text.empty() ? "" : "\n";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      text += i == 0 ? "  " + row[i] + space : "  " + space + row[i];
    }
  }
  return text;
}

}  // namespace zero::training

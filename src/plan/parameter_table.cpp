// The table of a summary of parameters, as wide as its reader's terminal.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <span>

#include "zero/parameter_summary.h"

namespace zero {
namespace {

enum Column : size_t { kName, kCount, kElements, kType, kMaster, kRule, kRate, kDecay, kGroup, kColumnCount };

using Row = std::vector<std::string>;

constexpr size_t kGap = 2;  // before each column
constexpr size_t kRulesIndent = 4;
constexpr size_t kShortestText = 12;  // of a name or a pattern, when it must be shortened
constexpr std::string_view kLeftOut = "...";

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::vector<Row> rows_of(const std::vector<ParameterSummary>& summary) {
  std::vector<Row> rows{
      {"parameters", "count", "elements", "type", "master", "rule", "lr", "decay", "group"}};
  for (const ParameterSummary& line : summary) {
    const bool is_frozen = line.rule == "frozen";
    rows.push_back({line.pattern, std::to_string(line.count), std::to_string(line.numel),
                    std::string(to_string(line.dtype)), is_frozen ? "-" : line.master, line.rule,
                    is_frozen ? "-" : number_text(line.lr), is_frozen ? "-" : number_text(line.weight_decay),
                    line.group});
  }
  return rows;
}

size_t width_of(std::span<const Row> rows, size_t column) {
  size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row[column].size());
  return width;
}

// Of a line with these columns, without what stands before it.
size_t width_of(std::span<const Row> rows, std::span<const size_t> columns) {
  return std::accumulate(columns.begin(), columns.end(), size_t{0}, [&](size_t width, size_t column) {
    return width + width_of(rows, column) + (width > 0 ? kGap : 0);
  });
}

// Names differ at both ends more than in the middle.
std::string shortened(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  const size_t kept = width - kLeftOut.size(), front = kept / 2;
  return text.substr(0, front) + std::string(kLeftOut) + text.substr(text.size() - (kept - front));
}

// Makes a column narrower, if that is needed, so that those columns fit `room`.
void shorten(std::vector<Row>& rows, size_t column, std::span<const size_t> columns, size_t room) {
  const size_t width = width_of(rows, columns), own = width_of(rows, column);
  if (width <= room) return;
  const size_t left = std::max(kShortestText, own - std::min(own, width - room));
  for (Row& row : rows) row[column] = shortened(row[column], left);
}

std::string line_of(std::span<const Row> rows, const Row& row, std::span<const size_t> columns) {
  std::string line;
  for (const size_t column : columns) {
    const bool is_number = column == kCount || column == kElements || column == kRate || column == kDecay;
    const std::string gap(width_of(rows, column) - row[column].size(), ' ');
    line += std::string(line.empty() ? 0 : kGap, ' ') + (is_number ? gap + row[column] : row[column] + gap);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// What is the same for all parameters is said once, in lines that fit `room`; its columns go.
std::string said_once(std::span<const Row> rows, std::vector<size_t>& columns, size_t room) {
  std::string text, line = "all:";
  std::erase_if(columns, [&](size_t column) {
    const auto same = [&](const Row& row) { return row[column] == rows[1][column]; };
    if (column < kType || !std::all_of(rows.begin() + 1, rows.end(), same)) return false;
    if (rows[1][column].empty()) return true;
    const std::string word = " " + rows[0][column] + " " + rows[1][column];
    if (line.size() + word.size() + 1 > room && line != "all:") {
      text += std::string(kGap, ' ') + line + ",\n";
      line = "    ";
    }
    if (line.back() == ' ')
      line += word.substr(1);
    else
      line += (line.back() == ':' ? "" : ",") + word;
    return true;
  });
  return line == "all:" ? "" : text + std::string(kGap, ' ') + line + "\n";
}

}  // namespace

std::string to_text(const std::vector<ParameterSummary>& summary, int columns) {
  std::vector<Row> rows = rows_of(summary);
  std::vector<size_t> shown(kColumnCount);
  std::iota(shown.begin(), shown.end(), 0);
  const size_t room = columns > 0 ? std::max<size_t>(columns, kGap + 1) - kGap : std::string::npos;
  std::string text;
  const bool is_narrow = width_of(rows, shown) > room;
  if (is_narrow && rows.size() > 1) text = said_once(rows, shown, room);
  // Two lines lose nothing, so that names are shortened only where a line's first half is too long.
  std::vector<size_t> second;
  if (width_of(rows, shown) > room) {
    const auto from = std::find_if(shown.begin(), shown.end(), [](size_t column) { return column >= kType; });
    second.assign(from, shown.end());
    shown.erase(from, shown.end());
    shorten(rows, kName, shown, room);
    if (std::find(second.begin(), second.end(), kGroup) != second.end())
      shorten(rows, kGroup, second, room - std::min(room, kRulesIndent));
  }
  for (const Row& row : rows) {
    text += std::string(kGap, ' ') + line_of(rows, row, shown) + "\n";
    if (!second.empty()) text += std::string(kGap + kRulesIndent, ' ') + line_of(rows, row, second) + "\n";
  }
  return text;
}

}  // namespace zero

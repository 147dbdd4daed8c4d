#include "config/problems.h"

#include <algorithm>
#include <cctype>

namespace zero::config {

namespace {
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
constexpr size_t kComparedCharacters = 100;  // longer words are no misspelt keys
}  // namespace

void Problems::add(ErrorKind kind, const Place& place, std::string problem, std::string remedy) {
  problems_.push_back({kind, place.text(), place.line, std::move(problem), std::move(remedy)});
}

void Problems::add(ErrorKind kind, const std::string& place, std::string problem, std::string remedy) {
  problems_.push_back({kind, place, 0, std::move(problem), std::move(remedy)});
}

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  auto sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.line < b.line; });
  const bool all_unsupported = std::all_of(sorted.begin(), sorted.end(),
                                           [](const auto& p) { return p.kind == ErrorKind::Unsupported; });
  const Problem& first = sorted.front();
  std::string more = first.remedy;
  for (size_t i = 1; i < sorted.size(); i++) {
    const Problem& p = sorted[i];
    more += std::string("\n") + Error(p.kind, p.place, p.problem, p.remedy).what();
  }
  // The first problem's own remedy may be missing: then the rest joins the problem, not a remedy.
  const auto kind = all_unsupported ? ErrorKind::Unsupported : ErrorKind::Config;
  if (first.remedy.empty()) throw Error(kind, first.place, first.problem + more);
  throw Error(kind, first.place, first.problem, more);
}

size_t edit_distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kComparedCharacters);
  b = b.substr(0, kComparedCharacters);
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) last[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped =
          i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& words) {
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : words) {
    const size_t distance = edit_distance(word, candidate);
    if (!best || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best ? *best : std::string();
}

std::string did_you_mean(std::string_view word) {
  return word.empty() ? std::string() : "did you mean " + in_quotes(word) + "?";
}

}  // namespace zero::config

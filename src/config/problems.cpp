#include "config/problems.h"

#include <algorithm>

namespace zero::config {

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

std::string did_you_mean(std::string_view word) {
  return word.empty() ? std::string() : "did you mean " + in_quotes(word) + "?";
}

}  // namespace zero::config

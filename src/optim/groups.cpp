// Parameter groups: names to groups by shell glob.
#include <string>

#include "optim/check.h"
#include "zero/error.h"
#include "zero/optimizer.h"

namespace zero {
namespace {

struct Bracket {
  bool matches = false;
  size_t end = 0;  // index after the closing ]
};

/// The set that starts at pattern[begin] == '['. A leading ! or ^ negates; a ] that comes first is a member.
Bracket match_bracket(std::string_view pattern, size_t begin, char c) {
  size_t i = begin + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  bool found = false;
  for (const size_t first = i; i < pattern.size(); ++i) {
    if (pattern[i] == ']' && i > first) return {found != negated, i + 1};
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      found = found || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 2;
    } else {
      found = found || pattern[i] == c;
    }
  }
  fail(ErrorKind::Config, "parameter group",
       "pattern \"" + std::string(pattern) + "\" has a [ that is never closed", "close it with ]");
}

/// Length of the pattern's token at `i` if it matches `c`, 0 if not. Not for '*'.
size_t match_one(std::string_view pattern, size_t i, char c) {
  if (pattern[i] == '?') return 1;
  if (pattern[i] != '[') return pattern[i] == c ? 1 : 0;
  const Bracket bracket = match_bracket(pattern, i, c);
  return bracket.matches ? bracket.end - i : 0;
}

void check_pattern(std::string_view pattern) {
  for (size_t i = 0; i < pattern.size();) i = pattern[i] == '[' ? match_bracket(pattern, i, 0).end : i + 1;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view name) {
  check_pattern(pattern);
  size_t p = 0, n = 0;
  size_t star = std::string_view::npos, star_name = 0;  // where to go on if this attempt fails
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
    } else if (const size_t token = p < pattern.size() ? match_one(pattern, p, name[n]) : 0) {
      p += token;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

void validate(std::span<const ParameterGroup> groups) {
  for (const auto& group : groups) {
    const std::string place = "parameter group \"" + group.pattern + "\"";
    require(!group.pattern.empty(), ErrorKind::Config, place,
            "pattern is empty, expected a glob over parameter names");
    check_pattern(group.pattern);
    const double lr = group.lr.value_or(0), weight_decay = group.weight_decay.value_or(0);
    check(is_finite_non_negative(lr), place, "lr", lr, kFiniteNonNegative);
    check(is_finite_non_negative(group.lr_scale), place, "lr_scale", group.lr_scale, kFiniteNonNegative);
    check(is_finite_non_negative(weight_decay), place, "weight_decay", weight_decay, kFiniteNonNegative);
  }
}

std::vector<int> assign_groups(std::span<const std::string> names, std::span<const ParameterGroup> groups) {
  std::vector<int> assigned(names.size(), 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    bool matched = false;
    for (size_t i = 0; i < names.size(); ++i) {
      if (!glob_matches(groups[g].pattern, names[i])) continue;
      matched = true;
      if (assigned[i] == 0) assigned[i] = static_cast<int>(g) + 1;
    }
    require(matched, ErrorKind::Config, "parameter group \"" + groups[g].pattern + "\"",
            "matches no parameter", "patterns cover the full dotted name, e.g. \"*.bias\"");
  }
  return assigned;
}

}  // namespace zero

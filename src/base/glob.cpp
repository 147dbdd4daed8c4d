#include "base/glob.h"

namespace zero {
namespace {

constexpr size_t kUnclosed = std::string_view::npos;

struct Set {
  bool matches = false;
  size_t end = kUnclosed;  // index after the closing ]
};

// The set that starts at glob[begin] == '['.
Set match_set(std::string_view glob, size_t begin, char c) {
  size_t i = begin + 1;
  const bool negated = i < glob.size() && (glob[i] == '!' || glob[i] == '^');
  if (negated) ++i;
  bool found = false;
  for (const size_t first = i; i < glob.size(); ++i) {
    if (glob[i] == ']' && i > first) return {found != negated, i + 1};
    if (i + 2 < glob.size() && glob[i + 1] == '-' && glob[i + 2] != ']') {
      found = found || (glob[i] <= c && c <= glob[i + 2]);
      i += 2;
    } else {
      found = found || glob[i] == c;
    }
  }
  return {};
}

// Length of the glob's token at `i` if it matches `c`, 0 if not. Not for '*'.
size_t match_one(std::string_view glob, size_t i, char c) {
  if (glob[i] == '?') return 1;
  if (glob[i] != '[') return glob[i] == c ? 1 : 0;
  const Set set = match_set(glob, i, c);
  return set.matches ? set.end - i : 0;
}

}  // namespace

// Greedy with one point of return, the last '*': linear but for repeated partial matches, never exponential.
bool glob_matches(std::string_view glob, std::string_view name) {
  size_t g = 0, n = 0;
  size_t star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = n;
    } else if (const size_t token = g < glob.size() ? match_one(glob, g, name[n]) : 0) {
      g += token;
      ++n;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

bool is_glob(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    i = text[i] == '[' ? match_set(text, i, 0).end : i + 1;
    if (i == kUnclosed) return false;
  }
  return !text.empty();
}

}  // namespace zero

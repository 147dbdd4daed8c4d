#include "data/nfc.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "data/nfc_tables.h"
#include "data/unicode.h"

namespace zero::data {
namespace {

// Hangul syllables compose by arithmetic (Unicode Standard, section 3.12).
constexpr char32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11a7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

struct Mark {
  char32_t value;
  uint8_t combining_class;
};

uint8_t combining_class(char32_t c) {
  if (c < 0x300) return 0;
  const auto* range = std::upper_bound(std::begin(kCombiningClasses), std::end(kCombiningClasses), c,
                                       [](char32_t v, const CombiningRange& r) { return v < r.first; });
  if (range == std::begin(kCombiningClasses)) return 0;
  --range;
  return c <= range->last ? range->combining_class : 0;
}

void decompose(char32_t c, std::vector<Mark>& out) {
  if (c - kSyllables < kSyllableCount) {
    const char32_t index = c - kSyllables, trail = index % kTrailCount;
    out.push_back({kLeads + index / (kVowelCount * kTrailCount), 0});
    out.push_back({kVowels + index / kTrailCount % kVowelCount, 0});
    if (trail != 0) out.push_back({kTrails + trail, 0});
    return;
  }
  const auto* entry = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                                       [](const Decomposition& d, char32_t v) { return d.composed < v; });
  if (entry == std::end(kDecompositions) || entry->composed != c) {
    out.push_back({c, combining_class(c)});
    return;
  }
  decompose(entry->first, out);
  if (entry->second != 0) decompose(entry->second, out);
}

// The pairs that compose, sorted by pair.
const std::vector<Decomposition>& compositions() {
  static const std::vector<Decomposition> pairs = [] {
    std::vector<Decomposition> made;
    for (const auto& d : kDecompositions) {
      if (d.composes) made.push_back(d);
    }
    std::sort(made.begin(), made.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second < b.second;
    });
    return made;
  }();
  return pairs;
}

// The character that `a` and `b` compose to, 0 when they do not.
char32_t compose(char32_t a, char32_t b) {
  if (a - kLeads < kLeadCount && b - kVowels < kVowelCount) {
    return kSyllables + ((a - kLeads) * kVowelCount + (b - kVowels)) * kTrailCount;
  }
  if (a - kSyllables < kSyllableCount && (a - kSyllables) % kTrailCount == 0 && b > kTrails &&
      b - kTrails < kTrailCount) {
    return a + (b - kTrails);
  }
  const auto& pairs = compositions();
  const auto entry = std::lower_bound(pairs.begin(), pairs.end(), Mark{}, [&](const Decomposition& d, Mark) {
    return d.first != a ? d.first < a : d.second < b;
  });
  return entry != pairs.end() && entry->first == a && entry->second == b ? entry->composed : 0;
}

// Canonical ordering: marks between two starters, stably by class.
void order(std::vector<Mark>& marks) {
  for (auto at = marks.begin(); at != marks.end();) {
    if (at->combining_class == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, marks.end(), [](const Mark& m) { return m.combining_class == 0; });
    std::stable_sort(at, end,
                     [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
    at = end;
  }
}

// Composes in place: each mark joins the last starter unless something of its class or higher stands between.
void compose(std::vector<Mark>& marks) {
  size_t kept = 0, starter = marks.size();
  int between = -1;  // class of the last mark kept after the starter, -1 when there is none
  for (const Mark mark : marks) {
    if (starter < marks.size() && between < static_cast<int>(mark.combining_class)) {
      if (const char32_t joined = compose(marks[starter].value, mark.value)) {
        marks[starter].value = joined;
        continue;
      }
    }
    if (mark.combining_class == 0) {
      starter = kept;
      between = -1;
    } else {
      between = mark.combining_class;
    }
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

void append_nfc(std::string_view text, std::vector<Mark>& scratch, std::string& out) {
  scratch.clear();
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    decompose(c.value, scratch);
    at += c.bytes;
  }
  order(scratch);
  compose(scratch);
  for (const Mark& mark : scratch) append_code_point(out, mark.value);
}

// Characters from U+0300 on have a lead byte from 0xCC on.
bool below_marks(char byte) { return static_cast<uint8_t>(byte) < 0xcc; }

}  // namespace

bool is_trivially_nfc(std::string_view text) { return std::all_of(text.begin(), text.end(), below_marks); }

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<Mark> scratch;
  size_t plain = 0;  // start of what has not been written yet
  for (size_t at = 0; at < text.size();) {
    if (below_marks(text[at])) {
      ++at;
      continue;
    }
    // A run from U+0300 on is normalised together with the one character before it, which it may join.
    size_t begin = at;
    if (begin > plain) {
      do --begin;
      while ((static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80);
    }
    while (at < text.size() && !below_marks(text[at])) at += code_point_at(text, at).bytes;
    out.append(text, plain, begin - plain);
    append_nfc(text.substr(begin, at - begin), scratch, out);
    plain = at;
  }
  out.append(text, plain);
  return out;
}

}  // namespace zero::data

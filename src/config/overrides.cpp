#include "config/overrides.h"

#include <charconv>

#include "base/utf8.h"
#include "config/parse.h"
#include "zero/error.h"

namespace zero::config {

namespace {

struct Override {
  std::string path;
  std::string value;
  Place place;
};

Override split(const std::string& text) {
  const Place place{std::make_shared<const std::string>("--set " + text), 0};
  // Checked before it is shown: an error message must be text.
  if (const auto bad = find_invalid_utf8(text)) {
    fail(ErrorKind::Config, "--set", "expected UTF-8, got an invalid byte at offset " + std::to_string(*bad));
  }
  const size_t equals = text.find('=');
  require(equals != std::string::npos && equals > 0, ErrorKind::Config, place.text(),
          "expected section.key=value, got " + in_quotes(text));
  return {text.substr(0, equals), text.substr(equals + 1), place};
}

Value parse_override_value(const Override& set) {
  try {
    return parse_json(set.value, set.place);
  } catch (const Error&) {
    // Text that means to be an object or a list and is not well formed would be a baffling string.
    const size_t first = set.value.find_first_not_of(" \t\n\r");
    if (first != std::string::npos && (set.value[first] == '{' || set.value[first] == '[')) throw;
  }
  Value value;
  value.kind = Value::Kind::String;
  value.text = set.value;
  value.place = set.place;
  return value;
}

[[noreturn]] void not_an_object(const Override& set, const std::string& path, const Value& value) {
  fail(ErrorKind::Config, set.place.text(),
       path + ": expected an object, got " + describe(value) + " (" + value.place.text() + ")");
}

// The item or member `part` of `parent`; a missing member is made.
Value& child(Value& parent, const Override& set, const std::string& part, const std::string& parent_path) {
  if (parent.kind == Value::Kind::Array) {
    size_t index = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && rest == part.data() + part.size();
    require(number && index < parent.items.size(), ErrorKind::Config, set.place.text(),
            parent_path + ": expected an index below " + std::to_string(parent.items.size()) + ", got " +
                in_quotes(part));
    return parent.items[index];
  }
  if (!parent.is_object()) not_an_object(set, parent_path, parent);
  if (Member* member = parent.find(part)) return member->value;
  parent.members.push_back({part, set.place, {}});
  Value& made = parent.members.back().value;
  made.kind = Value::Kind::Object;
  made.place = set.place;
  return made;
}

void apply(Value& root, const Override& set) {
  Value* here = &root;
  size_t begin = 0;
  for (int depth = 1; begin <= set.path.size(); depth++) {
    const size_t end = std::min(set.path.find('.', begin), set.path.size());
    const std::string part = set.path.substr(begin, end - begin);
    require(!part.empty(), ErrorKind::Config, set.place.text(),
            "expected a key between dots, got " + in_quotes(set.path));
    require(depth < kMaxDepth, ErrorKind::Config, set.place.text(),
            "expected at most " + std::to_string(kMaxDepth) + " keys, got more");
    const std::string parent_path = begin == 0 ? "configuration" : set.path.substr(0, begin - 1);
    here = &child(*here, set, part, parent_path);
    begin = end + 1;
  }
  *here = parse_override_value(set);
}

}  // namespace

void apply_overrides(Value& root, std::span<const std::string> overrides) {
  for (const std::string& text : overrides) apply(root, split(text));
}

}  // namespace zero::config

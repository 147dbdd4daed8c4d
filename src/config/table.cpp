#include "base/nearest.h"
#include "config/rows.h"

namespace zero::config {

namespace {

std::string leaf_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::string accepted_text(const std::vector<Json>& accepted) {
  std::string text;
  for (size_t i = 0; i < accepted.size(); i++) {
    if (i > 0) text += i + 1 == accepted.size() ? " or " : ", ";
    text += accepted[i].dump();
  }
  return text;
}

// A value of the right type asks for something this version does not do; one of another type is simply wrong.
bool same_type(const Value& value, const Json& json) {
  switch (value.kind) {
    case Value::Kind::Null:
      return true;
    case Value::Kind::Bool:
      return json.is_boolean();
    case Value::Kind::Integer:
    case Value::Kind::Real:
      return json.is_number();
    case Value::Kind::String:
      return json.is_string();
    case Value::Kind::Array:
      return json.is_array();
    case Value::Kind::Object:
      return json.is_object();
  }
  return false;
}

void read_off(Reader& reader, const Value& value, const std::string& path, const std::vector<Json>& accepted,
              const std::string& instead = {}) {
  bool right_type = false;
  for (const Json& json : accepted) {
    if (equals(value, json)) return;
    right_type = right_type || json.is_null() || same_type(value, json);
  }
  if (right_type) return reader.unsupported(value, path, accepted_text(accepted), instead);
  reader.wrong_value(value, path, accepted_text(accepted), {});
}

void read_off_section(Reader& reader, const Value& value, const std::string& path,
                      const OffSection& section) {
  if (value.kind == Value::Kind::Null) return;
  if (!value.is_object()) return reader.wrong_value(value, path, "an object or null", {});
  if (section.on_by_presence && !value.find(section.switch_key)) {
    return reader.unsupported(value, path, "null or {\"" + section.switch_key + "\": false}",
                              section.instead);
  }
  std::vector<std::string> known = section.others;
  known.push_back(section.switch_key);
  const bool any = std::find(known.begin(), known.end(), "*") != known.end();
  for (const Member& member : value.members) {
    if (section.auto_is_default && member.value.is_string("auto")) continue;
    if (member.key == section.switch_key) {
      read_off(reader, member.value, join_path(path, member.key), section.accepted, section.instead);
    } else if (!any && std::find(known.begin(), known.end(), member.key) == known.end()) {
      reader.unknown_key(member, path, known);
    }
  }
}

// How many edits a misspelling of this key may take.
size_t most_edits(const std::string& key) { return std::max<size_t>(2, key.size() / 3); }

// A misspelling of a neighbour, the right word in the wrong section, or a whole key that is nearly this one.
std::string remedy_for_key(const std::string& key, const std::string& section,
                           const std::vector<std::string>& known) {
  const std::string sibling = nearest_word(key, known);
  if (!known.empty() && edit_distance(key, sibling) <= most_edits(key)) return did_you_mean(sibling);
  std::vector<std::string> paths;
  for (const ConfigKey& other : config_keys()) {
    paths.push_back(other.path);
    if (!equal_ignoring_case(leaf_of(other.path), key)) continue;
    const bool is_outside = other.path == leaf_of(other.path);
    return is_outside ? "it stands outside of " + in_quotes(section) : did_you_mean(other.path);
  }
  const std::string full = join_path(section, key), nearest = nearest_word(full, paths);
  return edit_distance(full, nearest) <= most_edits(key) ? did_you_mean(nearest)
                                                         : "docs/configuration.md has all keys";
}

}  // namespace

std::string join_path(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

void Reader::note(const Value& value, const std::string& path, const std::string& text) {
  origin.notes.push_back(value.place.text() + ": " + path + " has no effect here: " + text);
}

void Reader::note_auto(const Value& value, const std::string& path) {
  origin.notes.push_back(value.place.text() + ": " + path +
                         ": \"auto\", which other programs fill in, is the default here");
}

void Reader::note_quotes(const Value& value, const std::string& path) {
  const std::string bare =
      value.kind == Value::Kind::Array ? "a list of numbers" : "the number " + value.text;
  origin.notes.push_back(value.place.text() + ": " + path + ": " + describe(value) + " is read as " + bare);
}

void Reader::wrong_value(const Value& value, const std::string& path, const std::string& expected,
                         const std::vector<std::string>& choices) {
  std::string remedy;
  if (value.kind == Value::Kind::String && !choices.empty()) {
    remedy = did_you_mean(nearest_word(value.text, choices));
  } else if (value.is_string("auto")) {
    remedy = "\"auto\" is filled in by programs around DeepSpeed: write the value";
  }
  const std::string subject = path.empty() ? std::string() : path + ": ";
  problems.add(ErrorKind::Config, value.place, subject + "expected " + expected + ", got " + describe(value),
               remedy);
}

void Reader::unsupported(const Value& value, const std::string& path, const std::string& expected,
                         const std::string& instead) {
  problems.add(ErrorKind::Unsupported, value.place,
               path + ": expected " + expected + ", got " + describe(value),
               "this version does not do " + path + " = " + describe(value) + ": " +
                   (instead.empty() ? "give what is expected" : "write " + instead + " in its place") +
                   ", or remove the key");
}

void Reader::unknown_key(const Member& member, const std::string& section,
                         const std::vector<std::string>& known) {
  const std::string full = join_path(section, member.key);
  problems.add(ErrorKind::Config, member.place, full + ": expected a known key, got " + in_quotes(member.key),
               remedy_for_key(member.key, section, known));
}

Row ignored_text(const std::string& name, const std::string& doc) {
  Row key;
  const Format<std::string> format = text();
  key.name = name;
  key.type = format.expected;
  key.doc = doc;
  key.support = ConfigKey::Support::Hint;
  key.default_text = "\"\"";
  key.schema = format.schema;
  key.read = [format](Reader& reader, const Value& value, const std::string& path, Config&) {
    std::string given;
    if (!format.parse(value, given)) reader.wrong_value(value, path, format.expected, {});
  };
  return key;
}

Row off(const std::string& name, std::vector<Json> accepted, const std::string& doc) {
  Row key;
  key.name = name;
  key.type = "only " + accepted_text(accepted);
  key.doc = doc;
  key.support = ConfigKey::Support::OffOnly;
  key.default_text = accepted.front().dump();
  key.schema = {{"enum", accepted}};
  key.read = [accepted](Reader& reader, const Value& value, const std::string& path, Config&) {
    read_off(reader, value, path, accepted);
  };
  return key;
}

Row off(const OffSection& section) {
  Row key;
  key.name = section.name;
  key.type = "only null or `" + section.switch_key + "`: " + accepted_text(section.accepted);
  key.doc = section.doc;
  key.support = ConfigKey::Support::OffOnly;
  key.default_text = "null";
  Json& properties = key.schema["properties"] = {{section.switch_key, {{"enum", section.accepted}}}};
  for (const std::string& other : section.others) properties[other] = true;
  key.schema["type"] = {"object", "null"};
  key.read = [section](Reader& reader, const Value& value, const std::string& path, Config&) {
    read_off_section(reader, value, path, section);
  };
  return key;
}

const Rows& all_rows() {
  static const Rows rows = [] {
    Rows all = deepspeed_batch_rows();
    for (Rows part : {Rows{zero_optimization_row(), optimizer_row(), scheduler_row()}, own_rows(),
                      monitor_rows(), unsupported_rows()}) {
      for (Row& row : part) all.push_back(std::move(row));
    }
    return all;
  }();
  return rows;
}

}  // namespace zero::config

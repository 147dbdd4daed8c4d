#pragma once
// The known keys as data: a section is a table of rows, a row says how one key is read, printed and
// described.

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/format.h"
#include "config/problems.h"
#include "zero/config.h"

namespace zero::config {

/// What reading needs beside the value.
struct Reader {
  Problems& problems;
  ConfigOrigin& origin;
  // Shorthands that may be given several times: by the key that they stand for, where first and its value.
  std::map<std::string, std::pair<std::string, Json>> shared = {};

  /// format.parse(); a number in quotes is taken too, and noted.
  template <class T>
  bool take(const Format<T>& format, const Value& value, const std::string& path, T& out) {
    if (format.parse(value, out)) return true;
    const auto bare = without_quotes(value);
    if (!bare || !format.parse(*bare, out)) return false;
    note_quotes(value, path);
    return true;
  }
  void note(const Value& value, const std::string& path, const std::string& text);
  void note_quotes(const Value& value, const std::string& path);
  void note_auto(const Value& value, const std::string& path);
  void wrong_value(const Value& value, const std::string& path, const std::string& expected,
                   const std::vector<std::string>& choices);
  void unsupported(const Value& value, const std::string& path, const std::string& expected,
                   const std::string& instead = {});
  void unknown_key(const Member& member, const std::string& section, const std::vector<std::string>& known);
};

template <class S>
struct Key {
  std::string name;
  std::vector<std::string> aliases;
  std::string type;
  std::string doc;
  ConfigKey::Support support = ConfigKey::Support::Bound;
  std::function<void(Reader&, const Value&, const std::string& path, S&)> read;
  std::function<Json(S&)> print;          // empty: not part of to_json
  std::vector<Key> keys;                  // a section's own rows
  std::vector<ConfigKey> elements;        // rows of a list's elements, for the description
  std::function<bool(const S&)> applies;  // empty: always
  std::string default_text;               // JSON, of a row that is not printed
  Json schema = Json::object();           // JSON schema of the value; a section's is made from `keys`
  std::string same_as;                    // path of the key that this is another spelling of
  std::vector<std::string> also_sets;     // paths of others whose fields it writes
  bool may_agree = false;                 // another spelling may be given beside it, with the same value
  bool auto_is_default = false;           // section: the string "auto" keeps a key's default, as in DeepSpeed

  bool is_named(std::string_view word) const {
    return name == word || std::find(aliases.begin(), aliases.end(), word) != aliases.end();
  }
};

std::string join_path(const std::string& section, const std::string& name);

/// Reads an object's members in the order of the rows, so that "type" comes before what depends on it.
template <class S>
void read_section(Reader& reader, const Value& object, const std::string& path,
                  const std::vector<Key<S>>& keys, bool auto_is_default, S& target) {
  if (!object.is_object()) return reader.wrong_value(object, path, "an object", {});
  std::vector<bool> used(object.members.size());
  std::vector<std::string> known;
  for (const Key<S>& key : keys) {
    if (key.applies && !key.applies(target)) continue;
    known.push_back(key.name);
    known.insert(known.end(), key.aliases.begin(), key.aliases.end());
    const Member* first = nullptr;
    for (size_t i = 0; i < object.members.size(); i++) {
      const Member& member = object.members[i];
      if (!key.is_named(member.key)) continue;
      used[i] = true;
      const std::string full = join_path(path, key.name);
      if (first) {
        reader.problems.add(ErrorKind::Config, member.place,
                            full + ": expected one spelling, got " + in_quotes(first->key) + " (" +
                                first->place.text() + ") and " + in_quotes(member.key),
                            "remove one of the two");
        continue;
      }
      first = &member;
      const bool empty_shorthand =
          key.support == ConfigKey::Support::Shorthand && member.value.kind == Value::Kind::Null;
      if (empty_shorthand) continue;
      reader.origin.places[full] = member.value.place.text();
      if (auto_is_default && member.value.is_string("auto")) continue;
      key.read(reader, member.value, full, target);
    }
  }
  for (size_t i = 0; i < used.size(); i++) {
    const bool is_remark = path.empty() && object.members[i].key.starts_with('_');  // people's own words
    if (!used[i] && !is_remark) reader.unknown_key(object.members[i], path, known);
  }
}

/// The section as JSON; rows that do not apply or are not printed are left out.
template <class S>
Json print_section(const std::vector<Key<S>>& keys, S& target) {
  Json object = Json::object();
  for (const Key<S>& key : keys) {
    if (key.print && (!key.applies || key.applies(target))) object[key.name] = key.print(target);
  }
  return object;
}

template <class S>
void describe_keys(const std::vector<Key<S>>& keys, const std::string& path, S& defaults,
                   std::vector<ConfigKey>& out) {
  for (const Key<S>& key : keys) {
    const std::string full = join_path(path, key.name);
    if (!key.keys.empty()) {
      describe_keys(key.keys, full, defaults, out);
      continue;
    }
    out.push_back({full, key.aliases, key.type, key.print ? key.print(defaults).dump() : key.default_text,
                   key.doc, key.support});
    out.insert(out.end(), key.elements.begin(), key.elements.end());
  }
}

}  // namespace zero::config

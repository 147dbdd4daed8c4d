#pragma once
// The known keys as data: a section is a table of rows, a row says how one key is read, printed and
// described.

#include <functional>
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
  const std::vector<ConfigKey>& all_keys;  // to recognise a key that stands in the wrong section

  void note(const Value& value, const std::string& path, const std::string& text);
  void wrong_value(const Value& value, const std::string& path, const std::string& expected,
                   const std::vector<std::string>& choices);
  void unsupported(const Value& value, const std::string& path, const std::string& expected);
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
  std::string same_as;                    // path of the key that this is another spelling of
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
    if (!used[i]) reader.unknown_key(object.members[i], path, known);
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

// ---- Rows
// ----------------------------------------------------------------------------------------------------------

/// A field of the configuration. `at` finds it in its struct.
template <class S, class T>
Key<S> field(std::string name, T& (*at)(S&), Format<T> format, std::string doc) {
  Key<S> key;
  key.name = std::move(name);
  key.type = format.expected;
  key.doc = std::move(doc);
  key.read = [at, format](Reader& reader, const Value& value, const std::string& path, S& target) {
    if (format.parse(value, at(target))) return;
    for (const std::string& known : format.unsupported) {
      if (value.kind == Value::Kind::String && equal_ignoring_case(value.text, known)) {
        return reader.unsupported(value, path, format.expected);
      }
    }
    reader.wrong_value(value, path, format.expected, format.choices);
  };
  key.print = [at, format](S& target) { return format.print(at(target)); };
  return key;
}

/// Another spelling of the key `same_as`: the same field, never printed. Giving both is an error.
template <class S, class T>
Key<S> shorthand(std::string name, T& (*at)(S&), Format<T> format, std::string same_as, std::string doc) {
  Key<S> key = field(std::move(name), at, std::move(format), std::move(doc));
  key.support = ConfigKey::Support::Shorthand;
  key.print = nullptr;
  key.same_as = std::move(same_as);
  return key;
}

template <class S>
Key<S> also(Key<S> key, std::vector<std::string> aliases) {
  key.aliases = std::move(aliases);
  return key;
}

/// The row exists only while `applies` holds; `names` says when, for the description.
template <class S>
Key<S> only_for(std::string names, bool (*applies)(const S&), Key<S> key) {
  key.applies = applies;
  key.doc += " (" + names + ")";
  return key;
}

template <class S>
Key<S> section(std::string name, std::vector<Key<S>> keys, bool auto_is_default = false) {
  Key<S> key;
  key.name = std::move(name);
  key.type = "an object";
  key.keys = std::move(keys);
  key.auto_is_default = auto_is_default;
  key.read = [rows = key.keys, auto_is_default](Reader& reader, const Value& value, const std::string& path,
                                                S& target) {
    read_section(reader, value, path, rows, auto_is_default, target);
  };
  // A section of rows that are never printed is not printed either.
  const bool printed =
      std::any_of(key.keys.begin(), key.keys.end(), [](const auto& row) { return bool(row.print); });
  if (printed) {
    key.print = [rows = key.keys](S& target) { return print_section(rows, target); };
  }
  return key;
}

/// A list of objects.
template <class S, class E>
Key<S> list(std::string name, std::vector<E>& (*at)(S&), std::vector<Key<E>> rows, std::string doc) {
  Key<S> key;
  key.name = std::move(name);
  key.type = "a list of objects";
  key.doc = std::move(doc);
  E defaults;
  describe_keys(rows, key.name + "[]", defaults, key.elements);
  key.read = [at, rows](Reader& reader, const Value& value, const std::string& path, S& target) {
    if (value.kind != Value::Kind::Array) return reader.wrong_value(value, path, "a list of objects", {});
    at(target).assign(value.items.size(), E{});
    for (size_t i = 0; i < value.items.size(); i++) {
      const std::string item = path + "[" + std::to_string(i) + "]";
      reader.origin.places[item] = value.items[i].place.text();
      read_section(reader, value.items[i], item, rows, false, at(target)[i]);
    }
  };
  key.print = [at, rows](S& target) {
    Json array = Json::array();
    for (E& element : at(target)) array.push_back(print_section(rows, element));
    return array;
  };
  return key;
}

// Rows without a field. They are made for the whole configuration only.
using Row = Key<Config>;
using Rows = std::vector<Row>;

/// Accepted only at one of these values (the first is DeepSpeed's default); anything else is Unsupported.
Row off(std::string name, std::vector<Json> accepted, std::string doc);

/// A DeepSpeed section that must be off: null, or an object whose `switch_key` is missing or has an accepted
/// value. Its other keys are checked by name only; `{"*"}` allows any.
struct OffSection {
  std::string name;
  std::string switch_key;
  std::vector<Json> accepted;
  std::vector<std::string> others;
  std::string doc;
  bool auto_is_default = false;
  bool on_by_presence = false;  // DeepSpeed switches it on when the section stands there without the switch
};
Row off(OffSection section);

/// Any value of that form is accepted; one other than the default adds a note that it has no effect.
template <class T>
Row hint(std::string name, Format<T> format, T default_value, std::string doc) {
  Row key;
  key.name = std::move(name);
  key.type = format.expected;
  key.doc = doc;
  key.support = ConfigKey::Support::Hint;
  key.default_text = format.print(default_value).dump();
  key.read = [format, default_value, doc](Reader& reader, const Value& value, const std::string& path,
                                          Config&) {
    T given{};
    if (!format.parse(value, given)) return reader.wrong_value(value, path, format.expected, format.choices);
    if (!(given == default_value)) reader.note(value, path, doc);
  };
  return key;
}

/// The table of the whole file. Each function below makes the rows of one part of it.
Rows all_rows();
Rows deepspeed_batch_rows();
Row zero_optimization_row();
Row optimizer_row();
Row scheduler_row();
Rows own_rows();
Rows unsupported_rows();  // sections and top-level keys of DeepSpeed that this version does not do

}  // namespace zero::config

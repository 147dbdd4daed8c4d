#pragma once
// The kinds of rows that the tables are made of, and the tables.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "config/schema.h"
#include "config/table.h"

namespace zero::config {

// ----------------------------------------------------------------------------------------------------------

/// A field of the configuration. `at` finds it in its struct.
template <class S, class T>
Key<S> field(const std::string& name, T& (*at)(S&), Format<T> format, const std::string& doc) {
  Key<S> key;
  key.name = name;
  key.type = format.expected;
  key.doc = doc;
  key.read = [at, format](Reader& reader, const Value& value, const std::string& path, S& target) {
    if (reader.take(format, value, path, at(target))) return;
    for (const std::string& known : format.unsupported) {
      if (value.kind == Value::Kind::String && equal_ignoring_case(value.text, known)) {
        return reader.unsupported(value, path, format.expected);
      }
    }
    reader.wrong_value(value, path, format.expected, format.choices);
  };
  key.print = [at, format](S& target) { return format.print(at(target)); };
  key.schema = format.schema;
  return key;
}

/// Another spelling of the key `same_as`: the same field, never printed. Giving both is an error.
template <class S, class T>
Key<S> shorthand(const std::string& name, T& (*at)(S&), Format<T> format, const std::string& same_as,
                 const std::string& doc) {
  Key<S> key = field(name, at, std::move(format), doc);
  key.support = ConfigKey::Support::Shorthand;
  key.print = nullptr;
  key.schema = or_null(key.schema);
  key.same_as = same_as;
  return key;
}

/// A shorthand of which DeepSpeed has several: they may be given together where they say the same.
template <class S, class T>
Key<S> shared_shorthand(const std::string& name, T& (*at)(S&), Format<T> format, const std::string& same_as,
                        const std::string& doc) {
  Key<S> key = shorthand(name, at, format, same_as, doc);
  key.may_agree = true;
  key.read = [at, print = format.print, read = key.read, same_as](Reader& reader, const Value& value,
                                                                  const std::string& path, S& target) {
    read(reader, value, path, target);
    const Json given = print(at(target));
    const auto [first, is_first] = reader.shared.try_emplace(same_as, path, given);
    if (is_first || first->second.second == given) return;
    reader.problems.add(ErrorKind::Config, value.place.text(),
                        path + ": expected " + first->second.second.dump() + " as in " + first->second.first +
                            ", got " + given.dump(),
                        "give both the same value, or one of them");
  };
  return key;
}

template <class S>
Key<S> also(Key<S> key, const std::vector<std::string>& aliases) {
  key.aliases = aliases;
  return key;
}

/// The row exists only while `applies` holds; `names` says when, for the description.
template <class S>
Key<S> only_for(const std::string& names, bool (*applies)(const S&), Key<S> key) {
  key.applies = applies;
  key.doc += " (" + names + ")";
  return key;
}

template <class S>
Key<S> section(const std::string& name, std::vector<Key<S>> keys, bool auto_is_default = false) {
  Key<S> key;
  key.name = name;
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

/// "auto", which programs around DeepSpeed fill in, keeps the default, and a note says so.
template <class S>
Key<S> auto_noted(Key<S> key) {
  key.schema = or_auto(key.schema);
  key.read = [read = key.read](Reader& reader, const Value& value, const std::string& path, S& target) {
    if (value.is_string("auto")) return reader.note_auto(value, path);
    read(reader, value, path, target);
  };
  return key;
}

template <class S>
std::vector<Key<S>> auto_noted(std::vector<Key<S>> keys) {
  for (Key<S>& key : keys) key = auto_noted(std::move(key));
  return keys;
}

/// A list of objects.
template <class S, class E>
Key<S> list(const std::string& name, std::vector<E>& (*at)(S&), std::vector<Key<E>> rows,
            const std::string& doc) {
  Key<S> key;
  key.name = name;
  key.type = "a list of objects";
  key.doc = doc;
  E defaults;
  describe_keys(rows, key.name + "[]", defaults, key.elements);
  key.schema = {{"type", "array"}, {"items", schema_of(rows)}};
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

/// Any string, which nobody reads.
Row ignored_text(const std::string& name, const std::string& doc);

/// Accepted only at one of these values (the first is DeepSpeed's default); anything else is Unsupported.
Row off(const std::string& name, std::vector<Json> accepted, const std::string& doc);

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
  std::string instead = {};     // what to write in its place, for the error
};
Row off(const OffSection& section);

/// Any value of that form is accepted; one other than the default adds a note that it has no effect.
template <class T>
Row hint(const std::string& name, Format<T> format, T default_value, const std::string& doc) {
  Row key;
  key.name = name;
  key.type = format.expected;
  key.doc = doc;
  key.support = ConfigKey::Support::Hint;
  key.default_text = format.print(default_value).dump();
  key.schema = format.schema;
  key.read = [format, default_value, doc](Reader& reader, const Value& value, const std::string& path,
                                          Config&) {
    T given{};
    if (!reader.take(format, value, path, given))
      return reader.wrong_value(value, path, format.expected, format.choices);
    if (!(given == default_value)) reader.note(value, path, doc);
  };
  return key;
}

/// The table of the whole file, made once. Each function below makes the rows of one part of it.
const Rows& all_rows();
Rows deepspeed_batch_rows();
Row zero_optimization_row();
Row optimizer_row();
Row scheduler_row();
Rows own_rows();
Row model_row();
Row lora_row();
Row gemini_row();
Rows monitor_rows();
Rows unsupported_rows();  // sections and top-level keys of DeepSpeed that this version does not do

}  // namespace zero::config

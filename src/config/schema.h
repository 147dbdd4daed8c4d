#pragma once
// The table of keys as a JSON schema (draft 2020-12), for editors.

#include "config/table.h"

namespace zero::config {

/// `schema`, or "auto".
Json or_auto(const Json& schema);
/// Adds what one row allows to an object's "properties": under its name and its aliases. Rows of one name (of
/// several types of optimizers) allow what any of them does.
void add_property(Json& properties, const std::string& name, const Json& schema);

/// Of a section with these rows.
template <class S>
Json schema_of(const std::vector<Key<S>>& keys, bool auto_is_default = false) {
  Json properties = Json::object();
  for (const Key<S>& key : keys) {
    Json schema = key.keys.empty() ? key.schema : schema_of(key.keys, key.auto_is_default);
    if (auto_is_default) schema = or_auto(schema);
    if (!key.doc.empty()) schema["description"] = key.doc;
    add_property(properties, key.name, schema);
    for (const std::string& alias : key.aliases) add_property(properties, alias, schema);
  }
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

}  // namespace zero::config

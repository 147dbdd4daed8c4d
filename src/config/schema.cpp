#include "config/schema.h"

#include "config/rows.h"
#include "zero/config_help.h"

namespace zero {

namespace config {

Json or_auto(const Json& schema) { return {{"anyOf", {schema, {{"const", "auto"}}}}}; }

void add_property(Json& properties, const std::string& name, const Json& schema) {
  if (!properties.contains(name)) {
    properties[name] = schema;
    return;
  }
  Json& there = properties[name];
  if (there == schema) return;
  const bool is_list = there.size() == 1 && there.contains("anyOf");
  if (!is_list) there = Json{{"anyOf", Json::array({there})}};
  there["anyOf"].push_back(schema);
}

}  // namespace config

std::string config_schema() {
  config::Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                         {"title", "A run of zero"}};
  schema.update(config::schema_of(config::all_rows()));
  schema["patternProperties"] = {{"^_", true}};  // remarks
  return schema.dump(2) + "\n";
}

}  // namespace zero

// Configuration -> JSON, and the description of every key.

#include "config/rows.h"

namespace zero {

namespace {

std::string_view to_string(ConfigKey::Support support) {
  switch (support) {
    case ConfigKey::Support::Bound:
      return "yes";
    case ConfigKey::Support::Shorthand:
      return "another spelling";
    case ConfigKey::Support::Hint:
      return "no effect, noted";
    case ConfigKey::Support::OffOnly:
      return "that value only";
  }
  return "";
}

}  // namespace

std::string to_json(const Config& config) {
  Config copy = config;
  copy.origin = {};
  try {
    return config::print_section(config::all_rows(), copy).dump(2) + "\n";
  } catch (const nlohmann::json::type_error&) {
    fail(ErrorKind::Config, "to_json", "expected UTF-8 in every text of the configuration, got other bytes");
  }
}

std::vector<ConfigKey> config_keys() {
  std::vector<ConfigKey> keys;
  Config defaults;
  config::describe_keys(config::all_rows(), "", defaults, keys);
  return keys;
}

std::string config_reference() {
  std::string table = "| Key | Expected | Default | Read | Meaning |\n|---|---|---|---|---|\n";
  const auto escaped = [](const std::string& text) {
    std::string out;
    for (char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
    return out;
  };
  for (const ConfigKey& key : config_keys()) {
    std::string name = "`" + key.path + "`";
    for (const std::string& alias : key.aliases) name += ", `" + alias + "`";
    const std::string value = key.default_value.empty() ? "" : "`" + escaped(key.default_value) + "`";
    for (const std::string& cell :
         {name, escaped(key.type), value, std::string(to_string(key.support)), escaped(key.doc)}) {
      table.append("| ").append(cell).append(" ");
    }
    table += "|\n";
  }
  return table;
}

}  // namespace zero

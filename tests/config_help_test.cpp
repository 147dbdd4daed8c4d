// The JSON schema of configurations and the template to start from.
#include "zero/config_help.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "zero/config.h"
#include "zero/error.h"

namespace zero {
namespace {

using Json = nlohmann::ordered_json;

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number() && value.get<double>() == std::trunc(value.get<double>());
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return type == "null" && value.is_null();
}

// What of JSON schemas the schema uses; a word that is not known fails.
bool allows(const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  for (const auto& [word, rule] : schema.items()) {
    const auto bound = [&](auto fits) {
      return !value.is_number() || fits(value.get<double>(), rule.get<double>());
    };
    const auto any = [&](auto fits) { return std::any_of(rule.begin(), rule.end(), fits); };
    bool good = true;
    if (word == "type") {
      good = rule.is_array() ? any([&](const Json& type) { return is_of_type(value, type); })
                             : is_of_type(value, rule);
    } else if (word == "enum") {
      good = any([&](const Json& choice) { return choice == value; });
    } else if (word == "const") {
      good = rule == value;
    } else if (word == "anyOf") {
      good = any([&](const Json& one) { return allows(one, value); });
    } else if (word == "minimum") {
      good = bound([](double x, double limit) { return x >= limit; });
    } else if (word == "maximum") {
      good = bound([](double x, double limit) { return x <= limit; });
    } else if (word == "exclusiveMinimum") {
      good = bound([](double x, double limit) { return x > limit; });
    } else if (word == "exclusiveMaximum") {
      good = bound([](double x, double limit) { return x < limit; });
    } else if (word == "minLength") {
      good = !value.is_string() || value.get<std::string>().size() >= rule.get<size_t>();
    } else if (word == "minItems") {
      good = !value.is_array() || value.size() >= rule.get<size_t>();
    } else if (word == "maxItems") {
      good = !value.is_array() || value.size() <= rule.get<size_t>();
    } else if (word == "items") {
      good = !value.is_array() ||
             std::all_of(value.begin(), value.end(), [&](const Json& item) { return allows(rule, item); });
    } else if (word == "properties") {
      const Json members = value.is_object() ? value : Json::object();
      for (const auto& [name, member] : members.items()) {
        if (rule.contains(name)) {
          good = good && allows(rule[name], member);
        } else if (!(name.starts_with('_') && schema.contains("patternProperties"))) {
          good = good && schema.value("additionalProperties", true);
        }
      }
    } else if (word == "patternProperties") {
      EXPECT_EQ(rule, Json({{"^_", true}})) << "remarks are what the test knows";
    } else if (word != "$schema" && word != "title" && word != "description" &&
               word != "additionalProperties") {
      ADD_FAILURE() << "the test does not know " << word;
    }
    if (!good) return false;
  }
  return true;
}

const Json& schema() {
  static const Json parsed = Json::parse(config_schema());
  return parsed;
}

bool loads(const Json& config) {
  try {
    (void)parse_config(config.dump());
    return true;
  } catch (const Error&) {
    return false;
  }
}

Json at_path(const std::string& path, const Json& value) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) return {{path, value}};
  return {{path.substr(0, dot), at_path(path.substr(dot + 1), value)}};
}

TEST(ConfigSchema, AllowsWhatTheConfigurationPrints) {
  EXPECT_TRUE(allows(schema(), Json::parse(to_json(parse_config("{}")))));
  for (const char* type : {"Adam", "Lion", "LAMB", "SGD"})
    EXPECT_TRUE(allows(schema(), Json::parse(to_json(parse_config(R"({"optimizer": {"type": ")" +
                                                                  std::string(type) + "\"}}")))))
        << type;
  for (const char* type : {"WarmupLR", "OneCycle", "Cosine", "WarmupStableDecay"})
    EXPECT_TRUE(allows(schema(), at_path("scheduler.type", type))) << type;
}

// Key by key: a value that the loader takes is allowed, and a value of a wrong type, or another section's
// key, is neither loaded nor allowed.
TEST(ConfigSchema, IsAsStrictAsTheLoaderAboutTypesAndNames) {
  const Json tried[] = {true,          false,         0, 1, 7, -3, 0.25, "auto", "text", "512MiB", nullptr,
                        Json::array(), Json::object()};
  int allowed = 0, refused = 0;
  for (const ConfigKey& key : config_keys()) {
    if (key.path.find("[]") != std::string::npos) continue;
    for (const Json& value : tried) {
      const Json config = at_path(key.path, value);
      const bool is_allowed = allows(schema(), config);
      if (loads(config)) EXPECT_TRUE(is_allowed) << config;
      (is_allowed ? allowed : refused)++;
    }
    const Json unknown = at_path(key.path + "_that_is_none", 1);
    EXPECT_FALSE(loads(unknown)) << unknown;
  }
  EXPECT_GT(allowed, 200);
  EXPECT_GT(refused, 500);
  EXPECT_FALSE(allows(schema(), {{"zero_optimisation", Json::object()}}));
  EXPECT_FALSE(allows(schema(), at_path("zero_optimization.stag", 1)));
  EXPECT_FALSE(allows(schema(), at_path("zero_optimization.stage", 4)));
}

TEST(ConfigSchema, MayBeNamedInAFile) {
  EXPECT_EQ(parse_config(R"({"$schema": "zero.schema.json"})"), Config{});
  EXPECT_TRUE(parse_config(R"({"$schema": "zero.schema.json"})").origin.notes.empty());
  EXPECT_THROW(parse_config(R"({"$schema": 1})"), Error);
}

TEST(ConfigTemplate, IsAConfiguration) {
  const Config config = parse_config(config_template());
  EXPECT_EQ(config.run.steps, 300);
  EXPECT_EQ(config.model.width, 256);
  EXPECT_NO_THROW(resolve(config, 2));
}

// What stands commented out are the defaults: with the comment's mark taken away it says the same.
TEST(ConfigTemplate, WithAllKeysSaysTheSame) {
  const std::string all = config_template(true);
  EXPECT_EQ(parse_config(all), parse_config(config_template()));
  size_t missing = 0;
  for (const ConfigKey& key : config_keys()) {
    const std::string leaf = "\"" + key.path.substr(key.path.rfind('.') + 1) + "\":";
    const bool depends_on_type = key.doc.ends_with(")") && key.path.find("params") != std::string::npos;
    if (key.support != ConfigKey::Support::Bound || key.path.find("[]") != std::string::npos ||
        depends_on_type)
      continue;
    missing += all.find(leaf) == std::string::npos && key.path.find("model.") != 0;
  }
  EXPECT_EQ(missing, 0u);
}

}  // namespace
}  // namespace zero

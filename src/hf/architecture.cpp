#include "hf/architecture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/strict_json.h"

namespace zero::hf {
namespace {

constexpr std::array kArchitectures{&kGpt2, &kLlama, &kGptNeox};
constexpr int64_t kMostCount = int64_t{1} << 31;

}  // namespace

const Architecture* find_architecture(std::string_view type) {
  for (const Architecture* architecture : kArchitectures)
    if (architecture->type == type) return architecture;
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture* architecture : kArchitectures)
    names.append(names.empty() ? "" : ", ").append(architecture->type);
  return names;
}

const nlohmann::json* ConfigReader::find(const std::string& key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::problem(const std::string& key, const std::string& expected) {
  const nlohmann::json* value = find(key);
  problems_.push_back(key + ": " + expectation(expected, value ? *value : nlohmann::json()));
}

int64_t ConfigReader::count(const std::string& key, std::optional<int64_t> otherwise) {
  const nlohmann::json* value = find(key);
  if (!value && otherwise) return *otherwise;
  if (value && value->is_number_unsigned() && value->get<uint64_t>() >= 1 &&
      value->get<uint64_t>() < static_cast<uint64_t>(kMostCount))
    return value->get<int64_t>();
  problem(key, "a whole number from 1 to 2^31 - 1");
  return 1;
}

double ConfigReader::positive(const std::string& key, std::optional<double> otherwise) {
  const nlohmann::json* value = find(key);
  if (!value && otherwise) return *otherwise;
  if (value && value->is_number() && std::isfinite(value->get<double>()) && value->get<double>() > 0)
    return value->get<double>();
  problem(key, "a number > 0");
  return 1;
}

bool ConfigReader::flag(const std::string& key, bool otherwise) {
  const nlohmann::json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_boolean()) problem(key, "true or false");
  return value->is_boolean() ? value->get<bool>() : otherwise;
}

std::string ConfigReader::text(const std::string& key, const std::string& otherwise) {
  const nlohmann::json* value = find(key);
  if (value && !value->is_string()) problem(key, "a string");
  return value && value->is_string() ? value->get<std::string>() : otherwise;
}

void ConfigReader::add(const std::string& key, const ConfigReader& inner) {
  for (const std::string& problem : inner.problems_) problems_.push_back(key + "." + problem);
}

void ConfigReader::only(const std::string& key, const std::vector<nlohmann::json>& accepted) {
  const nlohmann::json* value = find(key);
  if (!value || std::find(accepted.begin(), accepted.end(), *value) != accepted.end()) return;
  std::string expected;
  for (const auto& one : accepted) expected.append(expected.empty() ? "" : " or ").append(json_text(one));
  problem(key, expected + ", which is all that is done here");
}

const nlohmann::json* ConfigReader::object(const std::string& key) {
  const nlohmann::json* value = find(key);
  if (value && !value->is_object()) problem(key, "an object");
  return value && value->is_object() ? value : nullptr;
}

}  // namespace zero::hf

#include "plan/shape_check.h"

#include <cmath>
#include <utility>

#include "zero/error.h"

namespace zero::shapes {

void check_range(const char* model, const char* field, int64_t value, int64_t largest) {
  if (value >= 1 && value <= largest) return;
  fail(ErrorKind::Config, std::string(model) + " " + field,
       "expected 1 to " + std::to_string(largest) + ", got " + std::to_string(value));
}

void check_positive(const char* model, const char* field, double value) {
  require(std::isfinite(value) && value > 0, ErrorKind::Config, std::string(model) + " " + field,
          "expected a positive number, got " + std::to_string(value));
}

ModuleSpec module(const std::string& name, std::vector<ModuleSpec> children) {
  ModuleSpec spec;
  spec.name = name;
  spec.children = std::move(children);
  return spec;
}

ModuleSpec weight_only(const std::string& name, std::vector<int64_t> shape) {
  ModuleSpec spec = module(name);
  spec.parameters.push_back({.name = name + ".weight", .shape = std::move(shape)});
  return spec;
}

ModuleSpec layer_norm(const std::string& name, int64_t width) {
  ModuleSpec spec = weight_only(name, {width});
  spec.parameters.push_back({.name = name + ".bias", .shape = {width}});
  return spec;
}

ModuleSpec linear(const std::string& name, int64_t in, int64_t out, bool bias, bool transposed) {
  ModuleSpec spec = weight_only(name, transposed ? std::vector{in, out} : std::vector{out, in});
  if (bias) spec.parameters.push_back({.name = name + ".bias", .shape = {out}});
  spec.linear_in = in;
  spec.linear_out = out;
  return spec;
}

int64_t numel_of(const ModuleSpec& module) {
  int64_t numel = 0;
  for (const ParameterSpec& parameter : module.parameters) numel += parameter.numel();
  for (const ModuleSpec& child : module.children) numel += numel_of(child);
  return numel;
}

}  // namespace zero::shapes

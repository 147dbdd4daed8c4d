#include "convert/convert.h"

#include "convert/target.h"
#include "zero/error.h"

namespace zero::convert {
namespace {

// "zero_optimization.stage" as a JSON pointer; no key of ours has a dot or a slash in it.
Json::json_pointer pointer_of(std::string_view path) {
  std::string text = "/";
  for (const char c : path) text += c == '.' ? '/' : c;
  return Json::json_pointer(text);
}

bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

// Takes out "auto" values that are left, which mean the default, so that the file stands by itself.
void drop_autos(Json& value, const std::string& path, Target& target) {
  for (auto item = value.begin(); item != value.end();) {
    const std::string here = path.empty() ? item.key() : path + "." + item.key();
    if (item.value() == "auto") {
      target.note(here + ": \"auto\" is left to the default");
      item = value.erase(item);
      continue;
    }
    if (item.value().is_object()) drop_autos(item.value(), here, target);
    ++item;
  }
}

}  // namespace

Json Target::at(std::string_view path) const {
  const auto pointer = pointer_of(path);
  return out_.config.contains(pointer) ? out_.config.at(pointer) : Json();
}

Json& Target::slot(std::string_view path) { return out_.config[pointer_of(path)]; }

void Target::set(std::string_view path, const Json& value, const std::string& source) {
  const Json there = at(path);
  if (there.is_null() || there == "auto") {
    slot(path) = value;
    return;
  }
  if (!same(there, value))
    refuse(source + ": says " + std::string(path) + " is " + value.dump() + ", the DeepSpeed file " +
           there.dump() + "; give both the same value");
}

void Target::fill(std::string_view path, const Json& value) {
  if (is_auto(path)) slot(path) = value;
}

bool is_off(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_object() || value.is_array()) return value.empty();
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  for (const char* word : {"", "no", "No", "NO", "none", "None", "NONE", "null"})
    if (text == word) return true;
  return false;
}

Converted convert(const Sources& sources) {
  Converted out;
  out.config = sources.deepspeed;
  // Scripts give the Trainer a dictionary in place of a file's name.
  if (out.config.is_null() && sources.trainer.is_object() &&
      sources.trainer.value("deepspeed", Json()).is_object())
    out.config = sources.trainer.at("deepspeed");
  if (out.config.is_null()) out.config = Json::object();
  require(out.config.is_object(), ErrorKind::Config, "the DeepSpeed configuration", "expected an object");
  Target target(out);
  // accelerate's file may hold what DeepSpeed's leaves to it, and the Trainer's arguments what both leave.
  if (!sources.accelerate.is_null()) take_accelerate(sources.accelerate, target);
  if (!sources.trainer.is_null()) take_trainer(sources.trainer, target);
  drop_autos(out.config, "", target);
  return out;
}

}  // namespace zero::convert

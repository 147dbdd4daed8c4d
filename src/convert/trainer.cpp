// transformers' TrainingArguments, as their to_json_string() or a script's arguments give them, and what
// "auto" in a DeepSpeed file stands for under the Trainer (transformers/integrations/deepspeed.py says what
// it fills in).

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "convert/target.h"
#include "zero/error.h"

namespace zero::convert {
namespace {

// Words of a command line and YAML's bare no, as values of the types that the arguments have; what is null is
// as good as not there. PyYAML, which people write for, takes 2e-5 for a word too.
enum class Kind : uint8_t { Number, Truth, Word };

const std::map<std::string, Kind, std::less<>>& argument_kinds() {
  static const std::map<std::string, Kind, std::less<>> kinds = [] {
    std::map<std::string, Kind, std::less<>> all;
    for (const char* key : {"learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay",
                            "max_grad_norm", "per_device_train_batch_size", "gradient_accumulation_steps",
                            "max_steps", "warmup_steps", "warmup_ratio", "logging_steps", "save_total_limit",
                            "save_steps", "eval_steps", "seed", "num_train_epochs"})
      all[key] = Kind::Number;
    for (const char* key : {"bf16", "fp16", "adafactor", "gradient_checkpointing"}) all[key] = Kind::Truth;
    for (const char* key : {"optim", "lr_scheduler_type", "save_strategy", "eval_strategy",
                            "evaluation_strategy", "output_dir"})
      all[key] = Kind::Word;
    return all;
  }();
  return kinds;
}

// Null where it is none of that kind.
Json as_kind(const Json& value, Kind kind) {
  const std::string word = value.is_string() ? value.get<std::string>() : "";
  switch (kind) {
    case Kind::Number: {
      if (value.is_number()) return value;
      double read = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), read);
      if (error == std::errc() && end == word.data() + word.size()) return read;
      return {};
    }
    case Kind::Truth:
      if (value.is_boolean()) return value;
      for (const char* yes : {"true", "True", "yes", "1"})
        if (word == yes || value == 1) return true;
      for (const char* no : {"false", "False", "no", "0"})
        if (word == no || value == 0) return false;
      return {};
    case Kind::Word:
      if (value == false) return "no";
      return value.is_string() ? value : Json();
  }
  return {};
}

Json read_arguments(const Json& json, Target& target) {
  static const std::map<Kind, const char*> expected = {
      {Kind::Number, "a number"}, {Kind::Truth, "true or false"}, {Kind::Word, "a word"}};
  Json read = Json::object();
  for (const auto& [key, value] : json.items()) {
    if (value.is_null()) continue;
    const auto kind = argument_kinds().find(key);
    if (kind == argument_kinds().end()) {
      read[key] = value;
    } else if (Json typed = as_kind(value, kind->second); !typed.is_null()) {
      // A whole number stays one: seeds and counts are integers.
      if (typed.is_number_float() && value.is_string() &&
          typed.get<double>() == std::floor(typed.get<double>()) && std::abs(typed.get<double>()) < 1e15)
        typed = static_cast<int64_t>(typed.get<double>());
      read[key] = std::move(typed);
    } else {
      target.refuse(key + " " + value.dump() + ": expected " + expected.at(kind->second));
    }
  }
  return read;
}

double number(const Json& json, const char* key, double otherwise) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}
bool is_given(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null();
}

// What the Trainer's arguments come to where they do not say: TrainingArguments' defaults.
struct Arguments {
  explicit Arguments(const Json& json)
      : lr(number(json, "learning_rate", 5e-5)),
        beta1(number(json, "adam_beta1", 0.9)),
        beta2(number(json, "adam_beta2", 0.999)),
        eps(number(json, "adam_epsilon", 1e-8)),
        weight_decay(number(json, "weight_decay", 0)),
        max_grad_norm(number(json, "max_grad_norm", 1)),
        micro_batch(static_cast<int64_t>(number(json, "per_device_train_batch_size", 8))),
        accumulation(static_cast<int64_t>(number(json, "gradient_accumulation_steps", 1))),
        max_steps(static_cast<int64_t>(number(json, "max_steps", -1))),
        warmup_steps(static_cast<int64_t>(number(json, "warmup_steps", 0))) {
    const double share = number(json, "warmup_ratio", 0);
    if (warmup_steps == 0 && max_steps > 0)
      warmup_steps = static_cast<int64_t>(share * static_cast<double>(max_steps) + 0.999999);
  }
  double lr, beta1, beta2, eps, weight_decay, max_grad_norm;
  int64_t micro_batch, accumulation, max_steps, warmup_steps;
};

void take_optimizer(const Json& json, const Arguments& given, Target& target) {
  static const std::map<std::string, const char*, std::less<>> types = {
      {"adamw_torch", "AdamW"},       {"adamw_torch_fused", "AdamW"}, {"adamw_hf", "AdamW"},
      {"adamw_apex_fused", "AdamW"},  {"adamw_bnb_8bit", "AdamW"},    {"adamw_8bit", "AdamW"},
      {"paged_adamw_32bit", "AdamW"}, {"paged_adamw_8bit", "AdamW"},  {"sgd", "SGD"},
      {"adagrad", "Adagrad"},         {"adafactor", "Adafactor"},     {"lion_32bit", "Lion"},
      {"paged_lion_32bit", "Lion"}};
  const std::string name =
      json.value("adafactor", false) ? "adafactor" : json.value("optim", std::string("adamw_torch"));
  const auto type = types.find(name);
  if (type == types.end())
    return target.refuse("optim \"" + name + "\": no such optimizer here; write optimizer.type (" +
                         "AdamW, Adam, SGD, Lion, LAMB, LARS, Adagrad, Muon, Adafactor)");
  if (name.starts_with("paged_"))
    target.note("optim \"" + name +
                "\": states are paged where offload.optimizer says, not by the optimizer");
  const std::string from = "learning_rate and the like";
  if (target.at("optimizer").is_null()) {
    target.set("optimizer.type", type->second, "optim");
    target.set("optimizer.params.lr", given.lr, from);
    target.set("optimizer.params.weight_decay", given.weight_decay, from);
    if (std::string(type->second) == "AdamW") {
      target.set("optimizer.params.betas", Json::array({given.beta1, given.beta2}), from);
      target.set("optimizer.params.eps", given.eps, from);
      if (name.find("8bit") != std::string::npos) target.set("optimizer.params.states_8bit", true, "optim");
    }
    // The Trainer's choice: the rate is learning_rate itself.
    if (std::string(type->second) == "Adafactor")
      for (const char* key : {"scale_parameter", "relative_step"})
        target.set(std::string("optimizer.params.") + key, false, "optim");
    return;
  }
  target.fill("optimizer.type", type->second);
  target.fill("optimizer.params.lr", given.lr);
  target.fill("optimizer.params.betas", Json::array({given.beta1, given.beta2}));
  target.fill("optimizer.params.eps", given.eps);
  target.fill("optimizer.params.weight_decay", given.weight_decay);
}

void take_schedule(const Json& json, const Arguments& given, Target& target) {
  static const std::map<std::string, const char*, std::less<>> types = {
      {"linear", "Linear"},
      {"cosine", "Cosine"},
      {"cosine_with_restarts", "CosineRestarts"},
      {"polynomial", "Polynomial"},
      {"constant", "Constant"},
      {"constant_with_warmup", "Constant"},
      {"inverse_sqrt", "InverseSqrt"},
      {"warmup_stable_decay", "WarmupStableDecay"}};
  if (!target.at("scheduler").is_null()) {
    target.fill("scheduler.params.warmup_min_lr", 0);
    target.fill("scheduler.params.warmup_max_lr", given.lr);
    target.fill("scheduler.params.warmup_num_steps", given.warmup_steps);
    if (given.max_steps > 0) target.fill("scheduler.params.total_num_steps", given.max_steps);
    return;
  }
  const std::string name = json.value("lr_scheduler_type", "linear");
  const auto type = types.find(name);
  if (type == types.end())
    return target.refuse("lr_scheduler_type \"" + name +
                         "\": no such schedule here; write scheduler.type (docs/configuration.md)");
  target.set("scheduler.type", type->second, "lr_scheduler_type");
  if (given.warmup_steps > 0) target.set("scheduler.params.warmup_steps", given.warmup_steps, "warmup_steps");
}

void take_precision(const Json& json, Target& target) {
  for (const char* type : {"bf16", "fp16"}) {
    const std::string path = std::string(type) + ".enabled";
    if (is_given(json, type) && json.at(type).is_boolean() && json.at(type).get<bool>())
      target.set(path, true, type);
    else
      target.fill(path, false);
  }
  target.fill("fp16.initial_scale_power", 16);
}

void take_run(const Json& json, const Arguments& given, Target& target) {
  if (given.max_steps > 0)
    target.set("run.steps", given.max_steps, "max_steps");
  else if (is_given(json, "num_train_epochs"))
    target.note(
        "num_train_epochs: steps are counted here; write run.steps, samples of the data x epochs / "
        "train_batch_size");
  if (is_given(json, "output_dir")) target.set("run.directory", json.at("output_dir"), "output_dir");
  if (is_given(json, "seed")) target.set("run.seed", json.at("seed"), "seed");
  // Under 1 they are shares of all steps, which the Trainer knows when it has the data.
  const auto count = [&](const char* key, const char* path) {
    const double value = number(json, key, 0);
    if (value >= 1) target.set(path, static_cast<int64_t>(value), key);
  };
  count("logging_steps", "logging.print_interval_steps");
  count("save_total_limit", "checkpoint.keep_last");
  if (json.value("save_strategy", "steps") == "steps") count("save_steps", "checkpoint.interval_steps");
  if (json.value("eval_strategy", json.value("evaluation_strategy", "no")) == "steps" &&
      number(json, "eval_steps", 0) >= 1)
    target.note("eval_steps: write run.eval_interval_steps beside data.eval");
  if (json.value("gradient_checkpointing", false))
    target.set("activation_checkpointing.recompute", "all", "gradient_checkpointing");
}

// "full_shard auto_wrap", or a list of such words.
void take_fsdp(const Json& json, Target& target) {
  const Json value = json.value("fsdp", Json());
  if (is_off(value)) return;
  std::string words;
  if (value.is_string()) words = value.get<std::string>();
  if (value.is_array())
    for (const Json& word : value) words += " " + (word.is_string() ? word.get<std::string>() : word.dump());
  if (value == true) words = "full_shard";
  std::replace(words.begin(), words.end(), ',', ' ');
  static const std::map<std::string, int, std::less<>> stages = {
      {"full_shard", 3}, {"shard_grad_op", 2}, {"no_shard", 0}};
  std::istringstream in(words);
  for (std::string word; in >> word;) {
    if (const auto stage = stages.find(word); stage != stages.end()) {
      target.set("zero_optimization.stage", stage->second, "fsdp");
    } else if (word == "offload") {
      target.set("zero_optimization.offload_param.device", "cpu", "fsdp");
      target.set("zero_optimization.offload_optimizer.device", "cpu", "fsdp");
    } else if (word == "auto_wrap") {
      target.note("fsdp auto_wrap: units follow the module tree, no policy is needed");
    } else {
      target.refuse("fsdp " + word +
                    ": expected full_shard, shard_grad_op, no_shard, offload or auto_wrap; for hybrid_shard "
                    "write full_shard, and parallel.shard_group");
    }
  }
  const Json details = json.value("fsdp_config", Json());
  for (const char* key : {"activation_checkpointing", "fsdp_activation_checkpointing"})
    if (details.is_object() && as_kind(details.value(key, Json()), Kind::Truth) == true)
      target.set("activation_checkpointing.recompute", "all", "fsdp_config");
}

}  // namespace

void take_trainer(const Json& arguments, Target& target) {
  require(arguments.is_object(), ErrorKind::Config, "the Trainer's arguments", "expected an object");
  const Json trainer = read_arguments(arguments, target);
  const Arguments given(trainer);
  target.set("train_micro_batch_size_per_gpu", given.micro_batch, "per_device_train_batch_size");
  target.set("gradient_accumulation_steps", given.accumulation, "gradient_accumulation_steps");
  target.set("gradient_clipping", given.max_grad_norm, "max_grad_norm");
  take_precision(trainer, target);
  take_optimizer(trainer, given, target);
  take_schedule(trainer, given, target);
  take_run(trainer, given, target);
  take_fsdp(trainer, target);
  if (trainer.value("deepspeed", Json()).is_string())
    target.note("deepspeed: give the file itself as the first argument");
  for (const char* key :
       {"torch_compile", "fp16_full_eval", "group_by_length", "neftune_noise_alpha", "lomo"})
    if (is_given(trainer, key) && !is_off(trainer.at(key)))
      target.refuse(std::string(key) + ": this version has nothing like it; remove it");
}

}  // namespace zero::convert

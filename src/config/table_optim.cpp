// DeepSpeed's optimizer and scheduler sections, with three schedules of our own.

#include "config/rows.h"
#include "config/validate.h"

#define ZERO_AT(path) (+[](Config & config) -> auto& { return config.path; })

namespace zero::config {

namespace {

using Schedule = SchedulerConfig::Type;

bool is_adam(const Config& c) {
  return std::holds_alternative<Adam>(c.optimizer.rule) || std::holds_alternative<AdamW>(c.optimizer.rule);
}

bool is_polynomial(const Config& c) { return c.scheduler.type == Schedule::Polynomial; }
bool is_inverse_sqrt(const Config& c) { return c.scheduler.type == Schedule::InverseSqrt; }
bool is_restarts(const Config& c) { return c.scheduler.type == Schedule::CosineRestarts; }
bool is_stable(const Config& c) { return c.scheduler.type == Schedule::WarmupStableDecay; }
// Linear, Cosine, Polynomial, CosineRestarts, WarmupStableDecay.
bool decays_to_ratio(const Config& c) { return decays_to_total(c.scheduler.type); }
// And Constant, InverseSqrt.
bool is_own(const Config& c) {
  return decays_to_ratio(c) || is_inverse_sqrt(c) || c.scheduler.type == Schedule::Constant;
}
// WarmupLR, WarmupDecayLR.
bool warms_between(const Config& c) {
  return c.scheduler.type == Schedule::WarmupLr || c.scheduler.type == Schedule::WarmupDecayLr;
}
bool is_cosine_warmup(const Config& c) { return c.scheduler.type == Schedule::WarmupCosineLr; }
bool has_total(const Config& c) { return c.scheduler.type == Schedule::WarmupDecayLr || is_cosine_warmup(c); }
bool warms_up(const Config& c) { return warms_between(c) || is_cosine_warmup(c); }
bool is_one_cycle(const Config& c) { return c.scheduler.type == Schedule::OneCycle; }
bool is_range_test(const Config& c) { return c.scheduler.type == Schedule::LrRangeTest; }

Rows only(const std::string& names, bool (*applies)(const Config&), Rows rows) {
  for (Row& row : rows) row = only_for<Config>(names, applies, std::move(row));
  return rows;
}

void append(Rows& rows, Rows more) {
  for (Row& row : more) rows.push_back(std::move(row));
}

Format<double> number_format(NumberRange range) {
  switch (range) {
    case NumberRange::NonNegative:
      return number_at_least(0);
    case NumberRange::Positive:
      return number_above(0);
    case NumberRange::BelowOne:
      return number_below_one();
    case NumberRange::Unit:
      return number_within(0, 1);
  }
  fail(ErrorKind::Internal, "optimizer", "a range that is not in the list");
}

// A row that is read into the hyperparameter `key` of whatever rule is chosen. `value` and `set` convert.
template <class T, class Get, class Set>
Row rule_row(const Hyperparameter& like, const Format<T>& format, Get get, Set set) {
  const std::string name(like.key);
  Row row;
  row.name = name;
  row.type = format.expected;
  row.doc = like.doc;
  row.applies = [name](const Config& c) { return hyperparameter(c.optimizer.rule, name) != nullptr; };
  row.read = [name, format, set](Reader& reader, const Value& value, const std::string& path, Config& c) {
    T given{};
    if (!reader.take(format, value, path, given))
      return reader.wrong_value(value, path, format.expected, format.choices);
    set(c.optimizer.rule, *hyperparameter(c.optimizer.rule, name), given);
  };
  row.print = [name, format, get](Config& c) {
    // The default configuration's rule may not have the key: then of the first that does.
    const OptimizerRule& rule = c.optimizer.rule;
    if (const Hyperparameter* found = hyperparameter(rule, name)) return format.print(get(rule, *found));
    Json printed;
    for_each_rule([&](const OptimizerRule& other) {
      const Hyperparameter* found = hyperparameter(other, name);
      if (found && printed.is_null()) printed = format.print(get(other, *found));
    });
    return printed;
  };
  return row;
}

Row rule_row(const Hyperparameter& like) {
  switch (like.kind) {
    case Hyperparameter::Kind::Number:
      return rule_row<double>(
          like, number_format(like.range),
          [](const OptimizerRule& rule, const Hyperparameter& of) { return numbers_of(rule, of)[0]; },
          [](OptimizerRule& rule, const Hyperparameter& of, double value) {
            set_numbers(rule, of, {value});
          });
    case Hyperparameter::Kind::Pair:
      return rule_row<std::array<double, 2>>(like, pair_below_one(), numbers_of, set_numbers);
    case Hyperparameter::Kind::Switch:
      return rule_row<bool>(like, boolean(), flag_of, set_flag);
  }
  fail(ErrorKind::Internal, "optimizer", "a kind that is not in the list");
}

// One row for each key of the table of rules, in its order; the description says which rules have it.
Rows optimizer_params() {
  Rows rows;
  std::vector<std::string> having;
  size_t rules = 0;
  for_each_rule([&](const OptimizerRule& rule) {
    rules++;
    for (const Hyperparameter& one : hyperparameters_of(rule)) {
      const auto known =
          std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.name == one.key; });
      if (known == rows.end()) {
        rows.push_back(rule_row(one));
        having.emplace_back(rule_name(rule));
      } else {
        having[known - rows.begin()] += ", " + std::string(rule_name(rule));
      }
    }
  });
  for (size_t i = 0; i < rows.size(); ++i)
    if (std::count(having[i].begin(), having[i].end(), ',') + size_t{1} < rules)
      rows[i].doc += " (" + having[i] + ")";
  append(rows, only("Adam, AdamW", is_adam,
                    {field("adam_w_mode", ZERO_AT(optimizer.adam_w_mode), boolean(),
                           "decoupled weight decay; must be true for AdamW"),
                     off("amsgrad", {false}, "the largest second moment is not kept"),
                     hint("torch_adam", boolean(), false, "there is one Adam"),
                     off("fp32_optimizer_states", {true}, "optimizer states are fp32")}));
  return rows;
}

Rows own_params() {
  using Decay = SchedulerConfig::Decay;
  Rows rows = only("Polynomial", is_polynomial,
                   {field("power", ZERO_AT(scheduler.power), number_above(0), "of the decay; 1 is linear")});
  append(rows, only("InverseSqrt", is_inverse_sqrt,
                    {field("timescale", ZERO_AT(scheduler.timescale), null_as<int64_t>(0, integer(1)),
                           "steps after which lr has fallen to 0.71; null: warmup_steps, or 10,000")}));
  append(rows,
         only("CosineRestarts", is_restarts,
              {field("cycles", ZERO_AT(scheduler.cycles), integer(1), "half cosines, one after another"),
               field("cycle_growth", ZERO_AT(scheduler.cycle_growth), number_at_least(1),
                     "a cycle's length over that of the one before")}));
  append(rows, only("WarmupStableDecay", is_stable,
                    {field("decay_steps", ZERO_AT(scheduler.decay_steps), null_as<int64_t>(0, integer(1)),
                           "last steps, in which lr falls; null: a tenth of total_steps"),
                     field("decay_shape", ZERO_AT(scheduler.decay_shape),
                           choice<Decay>(
                               {{"linear", Decay::Linear}, {"sqrt", Decay::Sqrt}, {"cosine", Decay::Cosine}}),
                           "how it falls")}));
  return rows;
}

Rows warmup_params() {
  using Warmup = SchedulerConfig::Warmup;
  const Format<int64_t> steps = integer(0);
  Rows rows;
  append(rows, only("types that are not DeepSpeed's", is_own,
                    {field("warmup_steps", ZERO_AT(scheduler.warmup_steps), steps,
                           "steps of linear warm-up from 0")}));
  append(rows, only("Linear, Cosine, Polynomial, CosineRestarts, WarmupStableDecay", decays_to_ratio,
                    {field("total_steps", ZERO_AT(scheduler.total_steps), null_as<int64_t>(0, integer(1)),
                           "step at which the decay ends; null: run.steps"),
                     field("min_lr_ratio", ZERO_AT(scheduler.min_lr_ratio), number_within(0, 1),
                           "the decay ends at this share of lr")}));
  append(rows, own_params());
  append(rows, only("WarmupLR, WarmupDecayLR, WarmupCosineLR", warms_up,
                    {field("warmup_num_steps", ZERO_AT(scheduler.warmup_num_steps), steps,
                           "steps of warm-up; under 2 counts as 2, as in DeepSpeed"),
                     field("warmup_type", ZERO_AT(scheduler.warmup_type),
                           choice<Warmup>({{"log", Warmup::Log}, {"linear", Warmup::Linear}}),
                           "shape of warm-up")}));
  append(rows,
         only("WarmupLR, WarmupDecayLR", warms_between,
              {field("warmup_min_lr", ZERO_AT(scheduler.warmup_min_lr), number_at_least(0), "lr at step 0"),
               field("warmup_max_lr", ZERO_AT(scheduler.warmup_max_lr), nullable(number_at_least(0)),
                     "lr after warm-up; null: the group's lr, for WarmupDecayLR 0.001")}));
  append(rows,
         only("WarmupDecayLR, WarmupCosineLR", has_total,
              {field("total_num_steps", ZERO_AT(scheduler.total_num_steps), null_as<int64_t>(0, integer(1)),
                     "step at which the decay ends; null: run.steps")}));
  append(rows, only("WarmupCosineLR", is_cosine_warmup,
                    {field("warmup_min_ratio", ZERO_AT(scheduler.warmup_min_ratio), number_within(0, 1),
                           "share of lr at step 0"),
                     field("cos_min_ratio", ZERO_AT(scheduler.cos_min_ratio), number_within(0, 1),
                           "the decay ends at this share of lr")}));
  return rows;
}

Rows cycle_params() {
  const Format<int64_t> steps = integer(0);
  const Format<double> rate = number_at_least(0);
  const Format<double> momentum = number_below_one();
  return only(
      "OneCycle", is_one_cycle,
      {field("cycle_min_lr", ZERO_AT(scheduler.cycle_min_lr), rate, "lr at the ends of the cycle"),
       field("cycle_max_lr", ZERO_AT(scheduler.cycle_max_lr), rate, "lr at its middle; must be given"),
       field("decay_lr_rate", ZERO_AT(scheduler.decay_lr_rate), rate, "decay of lr after the cycle"),
       field("cycle_first_step_size", ZERO_AT(scheduler.cycle_first_step_size), integer(1),
             "steps of the first half"),
       field("cycle_second_step_size", ZERO_AT(scheduler.cycle_second_step_size), nullable(integer(1)),
             "steps of the second half; null: as the first"),
       field("cycle_first_stair_count", ZERO_AT(scheduler.cycle_first_stair_count), steps,
             "stairs; 0: smooth"),
       field("cycle_second_stair_count", ZERO_AT(scheduler.cycle_second_stair_count), nullable(steps),
             "stairs; null: as the first"),
       field("decay_step_size", ZERO_AT(scheduler.decay_step_size), steps, "steps of one decay; 0: no decay"),
       field("cycle_momentum", ZERO_AT(scheduler.cycle_momentum), boolean(), "cycle momentum against lr"),
       field("cycle_min_mom", ZERO_AT(scheduler.cycle_min_mom), momentum, "lowest momentum"),
       field("cycle_max_mom", ZERO_AT(scheduler.cycle_max_mom), momentum, "highest momentum"),
       field("decay_mom_rate", ZERO_AT(scheduler.decay_mom_rate), rate,
             "decay of momentum after the cycle")});
}

Rows range_test_params() {
  return only("LRRangeTest", is_range_test,
              {field("lr_range_test_min_lr", ZERO_AT(scheduler.lr_range_test_min_lr), number_above(0),
                     "lr at step 0"),
               field("lr_range_test_step_size", ZERO_AT(scheduler.lr_range_test_step_size), integer(1),
                     "steps of one increase"),
               field("lr_range_test_step_rate", ZERO_AT(scheduler.lr_range_test_step_rate),
                     number_at_least(0), "growth of one increase"),
               field("lr_range_test_staircase", ZERO_AT(scheduler.lr_range_test_staircase), boolean(),
                     "increase in stairs")});
}

}  // namespace

Row optimizer_row() {
  std::vector<std::pair<std::string, OptimizerRule>> names;
  for_each_rule([&](const OptimizerRule& rule) { names.emplace_back(rule_name(rule), rule); });
  for (const NamedRule& named : named_rules()) names.emplace_back(named.name, named.rule);
  Format<OptimizerRule> types =
      choice<OptimizerRule>(names, {"OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW", "MuSGD"});
  types.print = [](const OptimizerRule& rule) { return Json(rule_name(rule)); };
  return section<Config>("optimizer", {field("type", ZERO_AT(optimizer.rule), std::move(types),
                                             "\"Adam\" means AdamW unless adam_w_mode is false"),
                                       section<Config>("params", auto_noted(optimizer_params())),
                                       off("legacy_fusion", {false}, "")});
}

Row scheduler_row() {
  const auto types = choice<Schedule>({{"Constant", Schedule::Constant},
                                       {"Linear", Schedule::Linear},
                                       {"Cosine", Schedule::Cosine},
                                       {"WarmupLR", Schedule::WarmupLr},
                                       {"WarmupDecayLR", Schedule::WarmupDecayLr},
                                       {"WarmupCosineLR", Schedule::WarmupCosineLr},
                                       {"OneCycle", Schedule::OneCycle},
                                       {"LRRangeTest", Schedule::LrRangeTest},
                                       {"Polynomial", Schedule::Polynomial},
                                       {"InverseSqrt", Schedule::InverseSqrt},
                                       {"CosineRestarts", Schedule::CosineRestarts},
                                       {"WarmupStableDecay", Schedule::WarmupStableDecay}});
  Rows params = warmup_params();
  append(params, cycle_params());
  append(params, range_test_params());
  params.push_back(off("last_batch_iteration", {-1}, "a schedule starts at step 0; resuming sets the step"));
  return section<Config>("scheduler", {field("type", ZERO_AT(scheduler.type), types, "the schedule of lr"),
                                       section<Config>("params", auto_noted(std::move(params)))});
}

}  // namespace zero::config

// Property: what to_json prints parses back to an equal Config, resolved or not.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "support/config_text.h"

namespace zero {
namespace {

using test::parse;

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  int64_t from(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool flip() { return from(0, 1) == 1; }
  double unit() { return std::uniform_real_distribution<double>(0, 1)(random_); }  // [0, 1)
  double small() { return unit() * std::pow(10.0, static_cast<double>(from(-12, 3))); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + from(0, static_cast<int64_t>(values.size()) - 1));
  }
  template <class F>
  auto maybe(F value) -> std::optional<decltype(value())> {
    if (flip()) return std::nullopt;
    return value();
  }
  std::string text() {
    std::string out;
    for (int64_t n = from(1, 12); n > 0; n--)
      out += one_of<std::string>({"a", "/", "*", "\"", "\\", "é", "\n", " ", "//"});
    return out;
  }

 private:
  std::mt19937 random_;
};

void random_precision_and_zero(Dice& d, Config& c) {
  c.precision.bf16 = d.flip();
  if (d.flip()) c.precision.param_dtype = c.precision.bf16 ? Dtype::bf16 : Dtype::f32;
  const auto dtype = [&] { return d.one_of({Dtype::f32, Dtype::bf16}); };
  c.precision.buffer_dtype = d.maybe(dtype);
  c.precision.grad_accum_dtype = d.maybe(dtype);
  c.precision.communication_dtype = d.maybe(dtype);
  c.zero.stage = static_cast<int>(d.from(0, 3));
  c.zero.overlap_comm = d.maybe([&] { return d.flip(); });
  c.zero.reduce_bucket_numel = d.from(1, int64_t{1} << 40);
  c.zero.prefetch_numel = d.maybe([&] { return d.from(0, 1000000); });
  c.zero.max_live_numel = d.maybe([&] { return d.from(0, 1000000); });
  c.residency.budget_bytes = d.one_of<int64_t>({-1, 0, kAllBytes, 123456789});
  c.residency.prefetch_bytes = d.one_of<int64_t>({-1, 0, kAllBytes, 4096});
  c.residency.share = d.flip();
  c.recompute.every = d.one_of<int64_t>({kRecomputeNone, kRecomputeAll, kRecomputeAuto, 5});
  if (c.recompute.every == kRecomputeAuto) c.recompute.memory_bytes = d.one_of<int64_t>({0, 4096, kAllBytes});
  using Tier = ActivationTier;
  c.recompute.tier = d.one_of({Tier::Device, Tier::Host, Tier::Disk});
  if (c.recompute.every == kRecomputeAuto && d.flip()) c.recompute.tier = Tier::Auto;
  if (c.recompute.tier != Tier::Device) c.recompute.path = "/scratch";
  c.recompute.inputs_on_host = c.recompute.every != kRecomputeNone && d.flip();
  c.residency.split_master = d.flip();
  c.residency.group_numel = d.from(1, 1 << 30);
}

void random_optimizer(Dice& d, Config& c) {
  std::vector<OptimizerRule> rules;
  for_each_rule([&](const OptimizerRule& rule) { rules.push_back(rule); });
  OptimizerRule& rule = c.optimizer.rule;
  rule = rules[static_cast<size_t>(d.from(0, static_cast<int64_t>(rules.size()) - 1))];
  for (const Hyperparameter& one : hyperparameters_of(rule)) {
    const auto number = [&] {
      return one.range == NumberRange::NonNegative ? d.small() : 1e-9 + d.unit() / 2;
    };
    if (one.kind == Hyperparameter::Kind::Switch)
      set_flag(rule, one, d.flip());
    else
      set_numbers(rule, one, {number(), number()});
  }
  if (std::holds_alternative<Adam>(rule)) c.optimizer.adam_w_mode = d.flip();
  if (auto* sgd = std::get_if<SGD>(&rule)) {
    sgd->nesterov = sgd->nesterov && sgd->momentum > 0;
    if (sgd->nesterov) sgd->dampening = 0;
  }
  if (auto* adafactor = std::get_if<Adafactor>(&rule))
    adafactor->warmup_init = adafactor->warmup_init && adafactor->relative_step;
  if (auto* lamb = std::get_if<LAMB>(&rule)) lamb->min_coeff = lamb->max_coeff * d.unit();
}

void random_scheduler(Dice& d, Config& c) {
  using Type = SchedulerConfig::Type;
  SchedulerConfig& s = c.scheduler;
  s.type = d.one_of({Type::Constant, Type::Linear, Type::Cosine, Type::WarmupLr, Type::WarmupDecayLr,
                     Type::WarmupCosineLr, Type::OneCycle, Type::LrRangeTest, Type::Polynomial,
                     Type::InverseSqrt, Type::CosineRestarts, Type::WarmupStableDecay});
  const bool decays = s.type == Type::Linear || s.type == Type::Cosine || s.type == Type::Polynomial ||
                      s.type == Type::CosineRestarts || s.type == Type::WarmupStableDecay;
  if (decays || s.type == Type::Constant || s.type == Type::InverseSqrt) s.warmup_steps = d.from(0, 9);
  if (s.type == Type::Polynomial) s.power = 0.5 + d.unit();
  if (s.type == Type::InverseSqrt) s.timescale = d.from(0, 100);
  if (s.type == Type::CosineRestarts) {
    s.cycles = d.from(1, 5);
    s.cycle_growth = 1 + d.unit();
  }
  if (s.type == Type::WarmupStableDecay) {
    s.decay_steps = d.from(0, 1);
    s.decay_shape = d.one_of(
        {SchedulerConfig::Decay::Linear, SchedulerConfig::Decay::Sqrt, SchedulerConfig::Decay::Cosine});
  }
  if (decays) {
    s.total_steps = d.one_of<int64_t>({0, 10, 5000});
    s.min_lr_ratio = d.unit();
  }
  const bool warms = s.type == Type::WarmupLr || s.type == Type::WarmupDecayLr;
  const bool cosine = s.type == Type::WarmupCosineLr;
  if (warms || cosine) {
    s.warmup_num_steps = d.from(0, 10);
    s.warmup_type = d.one_of({SchedulerConfig::Warmup::Log, SchedulerConfig::Warmup::Linear});
  }
  if (warms) {
    s.warmup_max_lr = d.maybe([&] { return 1e-9 + d.unit(); });
    s.warmup_min_lr = d.unit() * std::min(s.warmup_max_lr.value_or(1e-3), rule_lr(c.optimizer.rule));
  }
  if (cosine || s.type == Type::WarmupDecayLr) s.total_num_steps = d.one_of<int64_t>({0, 10, 5000});
  if (cosine) {
    s.warmup_min_ratio = d.unit();
    s.cos_min_ratio = d.unit();
  }
  if (s.type == Type::OneCycle) {
    s.cycle_min_lr = d.unit();
    s.cycle_max_lr = s.cycle_min_lr + 1 / 3.0;
    s.cycle_first_step_size = d.from(1, 100);
    s.cycle_second_step_size = d.maybe([&] { return d.from(1, 100); });
    s.cycle_second_stair_count = d.maybe([&] { return d.from(0, 100); });
    s.cycle_first_stair_count = d.from(0, 100);
    s.decay_step_size = d.from(0, 100);
    s.decay_mom_rate = d.small();
    s.cycle_min_mom = d.unit() / 2;
    s.cycle_max_mom = s.cycle_min_mom + d.unit() / 2;
    s.cycle_momentum = d.flip();
    s.decay_lr_rate = d.small();
  }
  if (s.type == Type::LrRangeTest) {
    s.lr_range_test_min_lr = d.small() + 1e-12;
    s.lr_range_test_step_size = d.from(1, 100);
    s.lr_range_test_step_rate = d.small();
    s.lr_range_test_staircase = d.flip();
  }
}

void random_architecture(Dice& d, ModelConfig& m) {
  m.type = d.one_of<std::string>({"gpt2", "llama", "gpt_neox"});
  m.norm_epsilon = d.small() + 1e-12;
  m.from = d.flip() ? d.text() : "";
  if (m.type == "gpt2") {
    m.dropout = d.unit();
    return;
  }
  m.mlp_width = d.from(0, 300);
  m.rope_theta = d.small() + 1;
  m.tied_head = d.maybe([&] { return d.flip(); });
  if (m.type == "gpt_neox") {
    m.rotary_fraction = d.unit();
    m.parallel_residual = d.flip();
    m.tanh_gelu = d.flip();
    return;
  }
  m.kv_heads = d.one_of<int64_t>({0, 1, m.heads});
  m.head_width = 2 * d.from(1, 40);
  m.rope_scaling.factor = d.flip() ? 0 : 1 + d.small();
  m.rope_scaling.high_freq_factor = m.rope_scaling.low_freq_factor + 1 + d.small();
  m.rope_scaling.original_context = d.from(1, 10000);
}

void random_training(Dice& d, Config& c) {
  if (d.flip()) {
    c.lora.rank = d.from(1, 64);
    c.lora.alpha = d.small() + 1e-6;
    c.lora.targets = {d.text()};
    c.lora.from = d.flip() ? d.text() : "";
    return;
  }
  c.cpu_operators = d.flip();
  for (int64_t n = d.from(0, 3); n > 0; n--) c.frozen.push_back(d.text());
  for (int64_t n = d.from(0, 2); n > 0; n--) c.trainable.push_back(d.text());
}

void random_sections(Dice& d, Config& c) {
  c.model.heads = d.from(1, 8);
  c.model.width = c.model.heads * d.from(1, 100);
  c.model.layers = d.from(1, 50);
  c.model.vocab_size = d.from(1, 60000);
  c.model.context_length = d.from(1, 2048);
  random_architecture(d, c.model);
  c.model.seed = d.from(-1, 5);
  c.data.train = d.flip() ? d.text() : "";
  c.data.eval = d.text();
  c.data.tokenizer = d.flip() ? d.text() : "";
  c.data.sequence_length = d.from(0, c.model.context_length);
  c.data.seed = d.from(-1, int64_t{1} << 53);
  c.data.shuffle = d.flip();
  if (c.zero.stage > 0) c.parallel.shard_group_ranks = static_cast<int>(d.from(0, 2));
  c.parallel.ranks = d.flip() ? 0 : 2;
  c.parallel.timeout_s = d.small() + 1e-3;
  c.parallel.backend =
      d.one_of({ParallelConfig::Backend::Auto, ParallelConfig::Backend::Gloo, ParallelConfig::Backend::Nccl});
  c.parallel.threads_per_rank = static_cast<int>(d.from(0, 64));
  c.parallel.bind_cores = d.flip();
  if (c.parallel.backend != ParallelConfig::Backend::Gloo && d.flip())
    c.parallel.communication = Communication::fast;
  c.cuda.memory_bytes = d.flip() ? -1 : d.from(1, int64_t{1} << 40);
  c.cuda.expandable_segments = d.flip();
  c.checkpoint.directory = "x" + d.text();
  c.checkpoint.interval_steps = d.from(0, 100);
  c.checkpoint.keep_last = d.from(0, 100);
  c.checkpoint.save_at_end = d.flip();
  c.checkpoint.async = d.flip();
  c.checkpoint.trainable_only = d.flip();
  c.checkpoint.on_failure =
      d.flip() ? CheckpointConfig::OnFailure::Continue : CheckpointConfig::OnFailure::Stop;
  c.logging.metrics_file = d.flip() ? "m" + d.text() : "";
  c.logging.print_interval_steps = d.from(1, 100);
  c.run.directory = d.text();
  c.run.steps = d.from(10, 1000);
  c.run.seed = d.from(0, 1000);
  c.run.eval_interval_steps = d.from(0, 100);
  c.run.eval_batches = d.from(1, 100);
  for (int64_t n = d.from(0, 3); n > 0; n--) {
    ParameterGroupConfig group;
    group.pattern = d.text();
    group.lr = d.maybe([&] { return d.small(); });
    if (!group.lr) group.lr_scale = d.small();
    group.weight_decay = d.maybe([&] { return d.small(); });
    c.parameter_groups.push_back(group);
  }
  random_training(d, c);
}

Config random_config(uint32_t seed) {
  Dice d(seed);
  Config c;
  c.train_micro_batch_size = d.from(1, 16);
  c.gradient_accumulation_steps = d.from(0, 4);
  if (c.gradient_accumulation_steps > 0 && d.flip()) {
    c.train_batch_size = c.train_micro_batch_size * c.gradient_accumulation_steps * 2;
  }
  c.gradient_clipping = d.flip() ? 0 : d.small();
  c.prescale_gradients = d.flip();
  c.gradient_predivide_factor = d.small() + 1e-9;
  random_precision_and_zero(d, c);
  random_optimizer(d, c);
  random_scheduler(d, c);
  random_sections(d, c);
  return c;
}

TEST(ConfigRoundTrip, RandomConfigs) {
  for (uint32_t seed = 0; seed < 400; seed++) {
    const Config c = random_config(seed);
    const std::string text = to_json(c);
    const Config back = parse(text);
    ASSERT_EQ(back, c) << text;
    ASSERT_EQ(to_json(back), text);
  }
}

TEST(ConfigRoundTrip, ResolvedConfigs) {
  for (uint32_t seed = 0; seed < 400; seed++) {
    const Config c = resolve(random_config(seed), 2);
    const Config back = parse(to_json(c));
    ASSERT_EQ(back, c) << to_json(c);
    ASSERT_EQ(resolve(back, 2), c);
  }
}

// The text holds every field: two configurations that differ print differently.
TEST(ConfigRoundTrip, NoTwoConfigsPrintAlike) {
  std::vector<std::string> texts;
  for (uint32_t seed = 0; seed < 100; seed++) texts.push_back(to_json(random_config(seed)));
  std::sort(texts.begin(), texts.end());
  EXPECT_EQ(std::adjacent_find(texts.begin(), texts.end()), texts.end());
}

}  // namespace
}  // namespace zero

#include "config/validate.h"

#include <filesystem>

#include "base/glob.h"
#include "config/format.h"
#include "zero/placement.h"

namespace zero::config {

bool decays_to_total(SchedulerConfig::Type type) {
  using Type = SchedulerConfig::Type;
  return type == Type::Linear || type == Type::Cosine || type == Type::Polynomial ||
         type == Type::CosineRestarts || type == Type::WarmupStableDecay;
}

namespace {

using std::to_string;

class Checks {
 public:
  Checks(const Config& config, Problems& problems) : config_(config), problems_(problems) {}

  void expect(bool ok, const std::string& key, const std::string& expected, const std::string& got,
              const std::string& remedy = {}) {
    if (ok) return;
    problems_.add(ErrorKind::Config, config_.place(key), key + ": expected " + expected + ", got " + got,
                  remedy);
  }

 private:
  const Config& config_;
  Problems& problems_;
};

// What a model directory says is checked when it is read.
bool is_elsewhere(const Config& c) {
  return !c.model.from.empty() && !c.origin.places.contains("model.context_length");
}

void check_heads(const Config& c, Checks& checks) {
  const ModelConfig& m = c.model;
  const bool divides = m.width % m.heads == 0;
  checks.expect(divides || m.head_width > 0, "model.heads", "a divisor of model.width " + to_string(m.width),
                to_string(m.heads));
  checks.expect(m.kv_heads == 0 || m.heads % m.kv_heads == 0, "model.kv_heads",
                "a divisor of model.heads " + to_string(m.heads), to_string(m.kv_heads));
  const int64_t head_width = m.head_width > 0 ? m.head_width : m.width / m.heads;
  checks.expect(m.type != "llama" || !divides || head_width % 2 == 0, "model.head_width",
                "an even number, as pairs are rotated", to_string(head_width));
  const RopeScaling& s = m.rope_scaling;
  checks.expect(s.factor == 0 || s.high_freq_factor > s.low_freq_factor,
                "model.rope_scaling.high_freq_factor",
                "more than low_freq_factor " + to_string(s.low_freq_factor), to_string(s.high_freq_factor));
}

std::string word(TierChoice choice) { return in_quotes(tier_choice().print(choice).get<std::string>()); }

void check_budgets(const Config& c, Checks& checks) {
  const OffloadConfig& offload = c.offload;
  checks.expect(!offload.is_auto() || offload.memory_bytes > 0, "offload.memory", "bytes with \"auto\"",
                offload.memory_bytes < 0 ? "null" : to_string(offload.memory_bytes),
                "say what memory a rank may take, or where each kind is to be");
  checks.expect(offload.optimizer != TierChoice::Auto || offload.how.ratio == 1, "offload.ratio",
                "1 where offload.optimizer is \"auto\", which finds the share itself",
                to_string(offload.how.ratio), "remove it, or say where offload.optimizer is to be");
  for (const auto& [budget, key] : {std::pair{offload.memory_bytes, "offload.memory"},
                                    {offload.host_memory_bytes, "offload.host_memory"},
                                    {offload.disk_bytes, "offload.disk_space"}})
    checks.expect(offload.is_auto() || budget < 0, key, "null where no kind is \"auto\"", to_string(budget),
                  "let offload.optimizer be \"auto\"");
}

// ColossalAI has no stages: its fractions are of one that shards everything.
void check_gemini(const Config& c, Checks& checks) {
  const auto is_given = [&](const std::string& key) { return c.origin.places.contains("gemini." + key); };
  const double sharded = 1 - c.residency.gathered_ratio;
  const bool all_away = sharded == 1 && c.offload.optimizer == TierChoice::Host && c.offload.how.ratio == 1;
  checks.expect(!is_given("offload_param_frac") || c.offload.parameter == TierChoice::Device || all_away,
                "gemini.offload_param_frac", "0 unless shard_param_frac and offload_optim_frac are 1",
                to_string(c.offload.how.parameter_ratio), "set both to 1, or use offload.parameter");
  checks.expect(
      !is_given("shard_param_frac") || sharded == 1 || c.zero.stage == stage_that_shards_parameters(),
      "gemini.shard_param_frac", "1 below stage 3, which alone shards parameters", to_string(sharded),
      "set zero_optimization.stage to 3");
}

void check_offload(const Config& c, Checks& checks) {
  const OffloadConfig& offload = c.offload;
  const std::pair<TierChoice, const char*> kinds[] = {{offload.parameter, "offload.parameter"},
                                                      {offload.gradient, "offload.gradient"},
                                                      {offload.master_choice(), "offload.master"},
                                                      {offload.optimizer, "offload.optimizer"}};
  for (const auto& [kind, key] : kinds) {
    const bool follows = key == std::string_view("offload.master") && !offload.master;
    checks.expect(kind != TierChoice::Disk || !offload.how.path.empty() || follows, key,
                  "\"none\" or \"host\" without offload.path", "\"disk\"",
                  "let offload.path name an existing directory on a disk, which you may write to");
  }
  const bool sharded = c.zero.stage == stage_that_shards_parameters();
  checks.expect(
      sharded || offload.parameter == TierChoice::Device || offload.parameter == TierChoice::Auto,
      "offload.parameter",
      "\"none\" at stage " + to_string(c.zero.stage) + ", where every rank computes with all of them",
      word(offload.parameter), "set zero_optimization.stage to 3");
  checks.expect(offload.how.parameter_host_numel == 0 || offload.parameter == TierChoice::Disk,
                "offload.parameter_host_numel", "0 unless offload.parameter is \"disk\"",
                to_string(offload.how.parameter_host_numel));
  checks.expect(offload.how.block_bytes % 4096 == 0, "offload.block_bytes", "a multiple of 4096",
                to_string(offload.how.block_bytes));
  check_budgets(c, checks);
  check_gemini(c, checks);
}

void check_model_and_data(const Config& c, Checks& checks) {
  checks.expect(c.model.from.empty() || !c.origin.places.contains("model.size"), "model.size",
                "none with model.from, whose config.json says it", "one", "remove one of the two");
  if (!is_elsewhere(c)) {
    check_heads(c, checks);
    checks.expect(c.data.sequence_length <= c.model.context_length, "data.sequence_length",
                  "at most model.context_length " + to_string(c.model.context_length),
                  to_string(c.data.sequence_length));
  }
  checks.expect(c.run.eval_interval_steps == 0 || !c.data.eval.empty(), "run.eval_interval_steps",
                "0 without data.eval", to_string(c.run.eval_interval_steps), "set data.eval");
}

void check_lora(const Config& c, Checks& checks) {
  const bool on = c.lora.rank > 0;
  checks.expect(!on || !c.lora.targets.empty(), "lora.targets", "patterns of linear layers", "none");
  checks.expect(on || c.lora.targets.empty(), "lora.targets", "none without lora.rank", "some",
                "set lora.rank");
  checks.expect(on || c.lora.from.empty(), "lora.from", "none without lora.rank", in_quotes(c.lora.from),
                "set lora.rank");
  checks.expect(!on || (c.frozen.empty() && c.trainable.empty()), "lora.rank",
                "null with frozen or trainable: adapters alone are trained", to_string(c.lora.rank));
}

void check_recompute(const Config& c, Checks& checks) {
  const RecomputePolicy& r = c.recompute;
  const bool is_auto = r.every == kRecomputeAuto;
  checks.expect(is_auto || r.memory_bytes < 0, "activation_checkpointing.memory",
                "null unless recompute is \"auto\"", to_string(r.memory_bytes));
  checks.expect(!r.inputs_on_host || r.every != kRecomputeNone, "activation_checkpointing.cpu_checkpointing",
                "false where nothing is recomputed", "true", "set activation_checkpointing.recompute");
  checks.expect(!r.partition_inputs || r.every != kRecomputeNone || c.parallel.tensor == 1,
                "activation_checkpointing.partition_activations", "false where nothing is recomputed", "true",
                "set activation_checkpointing.recompute");
  checks.expect(is_auto || r.tier != ActivationTier::Auto, "activation_checkpointing.offload",
                "\"none\", \"host\" or \"disk\" unless recompute is \"auto\"", "\"auto\"",
                "set activation_checkpointing.recompute to \"auto\", or name the tier");
  checks.expect(r.tier != ActivationTier::Disk || !r.path.empty() || !c.offload.how.path.empty(),
                "activation_checkpointing.offload", "\"none\" or \"host\" without a directory", "\"disk\"",
                "let activation_checkpointing.offload_path name an existing directory on a disk");
  checks.expect(r.buffer_bytes >= 0, "activation_checkpointing.offload_buffer_size", "bytes", "null");
}

void check_precision(const Config& c, Checks& checks) {
  const PrecisionConfig& types = c.precision;
  checks.expect(!types.fp16 || !types.bf16, "fp16.enabled", "false with bf16.enabled true", "true",
                "enable one of the two");
  checks.expect(!types.stochastic_rounding || types.bf16, "precision.stochastic_rounding",
                "false unless bf16.enabled", "true", "enable bf16");
  checks.expect(types.fp32_parameters.empty() || types.bf16 || types.fp16, "precision.fp32",
                "[] where all parameters are fp32", "patterns", "enable bf16 or fp16, or remove the key");
  checks.expect(!types.autocast || (!types.bf16 && !types.fp16), "torch_autocast.enabled",
                "false with bf16.enabled or fp16.enabled", "true", "enable one of the two");
  if (!types.param_dtype) return;
  const Dtype enabled = types.fp16 ? Dtype::f16 : types.bf16 ? Dtype::bf16 : Dtype::f32;
  const auto word = [](bool is_on) { return is_on ? "true" : "false"; };
  checks.expect(*types.param_dtype == enabled, "data_types.param_dtype",
                std::string(to_string(enabled)) + " with bf16.enabled " + word(types.bf16) +
                    " and fp16.enabled " + word(types.fp16),
                std::string(to_string(*types.param_dtype)), "change one of them");
}

void check_optimizer(const Config& c, Checks& checks) {
  const OptimizerConfig& o = c.optimizer;
  checks.expect(!std::holds_alternative<AdamW>(o.rule) || o.adam_w_mode, "optimizer.params.adam_w_mode",
                "true with type AdamW", "false", "write type Adam for weight decay inside the gradient");
  if (const auto conflict = conflict_of(o.rule))
    checks.expect(false, "optimizer.params." + std::string(conflict->key), std::string(conflict->expected),
                  std::string(conflict->value));
}

void check_schedule(const Config& c, Checks& checks) {
  using Type = SchedulerConfig::Type;
  const SchedulerConfig& s = c.scheduler;
  const auto total = [&](int64_t given) { return given > 0 ? given : c.run.steps; };
  if (decays_to_total(s.type)) {
    checks.expect(s.warmup_steps < total(s.total_steps), "scheduler.params.warmup_steps",
                  "less than total_steps " + to_string(total(s.total_steps)), to_string(s.warmup_steps));
  }
  if (s.type == Type::WarmupStableDecay) {
    checks.expect(s.decay_steps <= total(s.total_steps) - s.warmup_steps, "scheduler.params.decay_steps",
                  "at most total_steps - warmup_steps " + to_string(total(s.total_steps) - s.warmup_steps),
                  to_string(s.decay_steps));
  }
  if (s.type == Type::WarmupDecayLr || s.type == Type::WarmupCosineLr) {
    checks.expect(s.warmup_num_steps <= total(s.total_num_steps), "scheduler.params.warmup_num_steps",
                  "at most total_num_steps " + to_string(total(s.total_num_steps)),
                  to_string(s.warmup_num_steps));
  }
  if (s.type == Type::WarmupLr || s.type == Type::WarmupDecayLr) {
    const double max =
        s.warmup_max_lr.value_or(s.type == Type::WarmupLr ? rule_lr(c.optimizer.rule) : kWarmupDecayMaxLr);
    checks.expect(s.warmup_min_lr <= max, "scheduler.params.warmup_min_lr",
                  "at most warmup_max_lr " + to_string(max), to_string(s.warmup_min_lr));
  }
  if (s.type == Type::OneCycle) {
    checks.expect(s.cycle_max_lr > 0 && s.cycle_max_lr >= s.cycle_min_lr, "scheduler.params.cycle_max_lr",
                  "a number > 0 and at least cycle_min_lr " + to_string(s.cycle_min_lr),
                  to_string(s.cycle_max_lr));
    checks.expect(s.cycle_max_mom >= s.cycle_min_mom, "scheduler.params.cycle_max_mom",
                  "at least cycle_min_mom " + to_string(s.cycle_min_mom), to_string(s.cycle_max_mom));
  }
}

void check_groups(const Config& c, Checks& checks) {
  for (size_t i = 0; i < c.parameter_groups.size(); i++) {
    const ParameterGroupConfig& group = c.parameter_groups[i];
    const std::string key = "parameter_groups[" + to_string(i) + "]";
    checks.expect(is_glob(group.pattern), key + ".pattern", "a glob over parameter names",
                  group.pattern.empty() ? "none" : in_quotes(group.pattern));
    checks.expect(!group.lr || group.lr_scale == 1, key + ".lr_scale", "lr or lr_scale", "both",
                  "remove one of the two");
  }
  for (const std::string& glob : c.frozen)
    checks.expect(is_glob(glob), "frozen", "globs over parameter names", in_quotes(glob));
  for (const std::string& glob : c.trainable)
    checks.expect(is_glob(glob), "trainable", "globs over parameter names", in_quotes(glob));
}

void check_paths(const Config& c, Checks& checks) {
  const auto stays_inside = [](const std::string& path) {
    const std::filesystem::path p(path);
    if (p.is_absolute()) return false;
    return p.lexically_normal().begin() == p.lexically_normal().end() ||
           *p.lexically_normal().begin() != "..";
  };
  checks.expect(stays_inside(c.checkpoint.directory), "checkpoint.directory", "a path inside run.directory",
                in_quotes(c.checkpoint.directory));
  checks.expect(stays_inside(c.logging.metrics_file), "logging.metrics_file", "a path inside run.directory",
                in_quotes(c.logging.metrics_file));
}

void check_parallel(const Config& c, Checks& checks) {
  checks.expect(
      c.parallel.shard_group_ranks == 0 || placements_for(c.zero.stage).optimizer == Placement::Shard,
      "parallel.shard_group", "null at stage " + to_string(c.zero.stage) + ", which shards nothing",
      to_string(c.parallel.shard_group_ranks));
  const int ranks = c.parallel.ranks;
  const int group = c.parallel.shard_group_ranks;
  checks.expect(ranks == 0 || group == 0 || ranks % group == 0, "parallel.shard_group",
                "a divisor of parallel.ranks " + to_string(ranks), to_string(group));
  using Backend = ParallelConfig::Backend;
  const bool has_fast = c.parallel.backend == Backend::Auto || c.parallel.backend == Backend::Nccl;
  checks.expect(c.parallel.communication == Communication::exact || has_fast, "parallel.communication",
                "exact with parallel.backend shm and gloo, which add in rank order", "\"fast\"",
                "set one of the two to what the other needs");
  checks.expect(c.cuda.memory_bytes != 0, "cuda.memory", "more than 0 bytes, or null for all", "0");
}

}  // namespace

void validate(const Config& config, Problems& problems) {
  Checks checks(config, problems);
  check_model_and_data(config, checks);
  check_offload(config, checks);
  check_lora(config, checks);
  check_recompute(config, checks);
  check_precision(config, checks);
  check_optimizer(config, checks);
  check_schedule(config, checks);
  check_groups(config, checks);
  check_paths(config, checks);
  check_parallel(config, checks);
}

}  // namespace zero::config

// Values that follow from other values and from the number of ranks.

#include <algorithm>

#include "config/validate.h"
#include "zero/config.h"

namespace zero {

namespace {

using std::to_string;

// train = micro * accumulation * ranks, or -1 where that does not fit 64 bits.
int64_t batch_product(int64_t micro, int64_t accumulation, int64_t ranks) {
  int64_t product = 0;
  if (__builtin_mul_overflow(micro, accumulation, &product)) return -1;
  if (__builtin_mul_overflow(product, ranks, &product)) return -1;
  return product;
}

struct Batch {
  int64_t train, micro, accumulation;
};

// DeepSpeed's inference of what is missing (0): whole divisions, checked afterwards.
Batch infer_batch(Batch given, int64_t ranks) {
  auto [train, micro, accumulation] = given;
  if (train && micro && !accumulation) {
    accumulation = train / micro / ranks;
  } else if (train && accumulation && !micro) {
    micro = train / ranks / accumulation;
  } else if (train && !micro) {
    accumulation = 1;
    micro = train / ranks;
  } else if (micro && !train) {
    if (!accumulation) accumulation = 1;
    train = batch_product(micro, accumulation, ranks);
  }
  return {train, micro, accumulation};
}

std::string batch_place(const Config& c) {
  for (const char* key :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    if (c.origin.places.contains(key)) return c.place(key);
  }
  return c.place("");
}

void resolve_batch(Config& c, int ranks) {
  const Batch given{c.train_batch_size, c.train_micro_batch_size, c.gradient_accumulation_steps};
  require(given.train > 0 || given.micro > 0, ErrorKind::Config, batch_place(c),
          "train_batch_size: expected train_batch_size or train_micro_batch_size_per_gpu, got neither",
          "write train_micro_batch_size_per_gpu, samples that a rank takes at a time");
  const Batch batch = infer_batch(given, ranks);
  const int64_t product = batch_product(batch.micro, batch.accumulation, ranks);
  const bool fits = batch.micro > 0 && batch.accumulation > 0 && batch.train > 0 && batch.train == product;
  const auto shown = [](int64_t value, int64_t as_given) {
    return to_string(value) + (as_given > 0 ? "" : " (inferred)");
  };
  require(
      fits, ErrorKind::Config, batch_place(c),
      "train_batch_size: expected train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks, got "
      "train_batch_size " +
          shown(batch.train, given.train) + " but " + shown(batch.micro, given.micro) + " x " +
          shown(batch.accumulation, given.accumulation) + " x " + to_string(ranks) + " = " +
          to_string(product),
      "change one of the three or the number of ranks");
  c.train_batch_size = batch.train;
  c.train_micro_batch_size = batch.micro;
  c.gradient_accumulation_steps = batch.accumulation;
}

// What stages of layers do not do yet.
void check_pipeline(const Config& c) {
  const auto refuse = [&](bool is_asked, const char* key, const char* remedy) {
    require(!is_asked, ErrorKind::Unsupported, c.place(key),
            std::string(key) + ": not with parallel.pipeline " + to_string(c.parallel.pipeline) + " yet",
            remedy);
  };
  refuse(c.offload.is_auto(), "offload", "say where each kind of state is");
  // What is free would have to be shared by micro-batches under way.
  require(
      c.recompute.every != kRecomputeAuto || c.recompute.memory_bytes >= 0, ErrorKind::Config,
      c.place("activation_checkpointing.memory"),
      "activation_checkpointing.memory: recompute \"auto\" finds out what is free without a pipeline only",
      "say what a rank's blocks may keep of a micro-batch");
}

void check_ranks(const Config& c, int ranks) {
  require(ranks >= 1, ErrorKind::Usage, "resolve", "expected at least 1 rank, got " + to_string(ranks));
  require(c.parallel.ranks == 0 || c.parallel.ranks == ranks, ErrorKind::Config, c.place("parallel.ranks"),
          "parallel.ranks: expected " + to_string(ranks) + ", the number of ranks that run, got " +
              to_string(c.parallel.ranks),
          "start that many ranks or remove the key");
  require(ranks % c.parallel.tensor == 0, ErrorKind::Config, c.place("parallel.tensor"),
          "parallel.tensor: expected a divisor of the " + to_string(ranks) + " ranks, got " +
              to_string(c.parallel.tensor));
  require(
      c.parallel.tensor > 1 || !c.parallel.sequence, ErrorKind::Config, c.place("parallel.sequence"),
      "parallel.sequence: the sequence is cut over the ranks that share a layer, and parallel.tensor is 1",
      "set parallel.tensor, or remove the key");
  require(ranks % c.parallel.pipeline == 0, ErrorKind::Config, c.place("parallel.pipeline"),
          "parallel.pipeline: expected a divisor of the " + to_string(ranks) + " ranks, got " +
              to_string(c.parallel.pipeline));
  require(ranks / c.parallel.pipeline % c.parallel.tensor == 0, ErrorKind::Config, c.place("parallel.tensor"),
          "parallel.tensor: expected a divisor of the " + to_string(ranks / c.parallel.pipeline) +
              " ranks of each place along the pipeline, got " + to_string(c.parallel.tensor));
  if (c.parallel.pipeline > 1) check_pipeline(c);
  ranks = data_ranks(c, ranks);
  const int group = c.parallel.shard_group_ranks;
  require(group == 0 || (group <= ranks && ranks % group == 0), ErrorKind::Config,
          c.place("parallel.shard_group"),
          "parallel.shard_group: expected a divisor of the " + to_string(ranks) + " ranks, got " +
              to_string(group));
}

// The smaller of two limits, where -1 or nothing means none. `numel` counts parameters.
int64_t tighter(int64_t bytes, std::optional<int64_t> numel, Dtype dtype) {
  if (!numel) return bytes;
  int64_t other = 0;
  if (__builtin_mul_overflow(*numel, itemsize(dtype), &other)) return bytes;
  return bytes < 0 ? other : std::min(bytes, other);
}

// The smaller of two sizes of a piece, as the step can be cut: parameters and gradients on disk move in
// blocks of the disk.
int64_t piece_of(int64_t sub_group_numel, const OffloadConfig& offload) {
  constexpr int64_t kLeast = 1024, kDiskBlockNumel = 2048;
  const bool stays = offload.parameter == TierChoice::Device && offload.gradient == TierChoice::Device;
  const int64_t block = stays ? kStateBlockNumel : kDiskBlockNumel;
  const int64_t rounded = std::max(kLeast, (sub_group_numel + block - 1) / block * block);
  return std::min(rounded, offload.how.piece_numel);
}

}  // namespace

bool OffloadConfig::is_auto() const {
  return parameter == TierChoice::Auto || gradient == TierChoice::Auto || optimizer == TierChoice::Auto ||
         master_choice() == TierChoice::Auto;
}

bool OffloadConfig::uses_disk() const {
  return parameter == TierChoice::Disk || gradient == TierChoice::Disk || optimizer == TierChoice::Disk ||
         master_choice() == TierChoice::Disk || (is_auto() && !how.path.empty());
}

namespace config {
void derive(Config& c) {
  PrecisionConfig& p = c.precision;
  if (!p.param_dtype) p.param_dtype = p.bf16 ? Dtype::bf16 : p.fp16 ? Dtype::f16 : Dtype::f32;
  if (!p.grad_accum_dtype) p.grad_accum_dtype = Dtype::f32;
  c.residency.budget_bytes = tighter(c.residency.budget_bytes, c.zero.max_live_numel, *p.param_dtype);
  c.residency.prefetch_bytes = tighter(c.residency.prefetch_bytes, c.zero.prefetch_numel, *p.param_dtype);
  if (c.zero.sub_group_numel) c.offload.how.piece_numel = piece_of(*c.zero.sub_group_numel, c.offload);
  if (c.recompute.tier != ActivationTier::Device && c.recompute.path.empty())
    c.recompute.path = c.offload.how.path;
  if (c.model.seed < 0) c.model.seed = c.run.seed;
  if (c.data.seed < 0) c.data.seed = c.run.seed;
  if (c.data.sequence_length == 0) c.data.sequence_length = c.model.context_length;
  using Type = SchedulerConfig::Type;
  SchedulerConfig& s = c.scheduler;
  const bool deepspeed_decay = s.type == Type::WarmupDecayLr || s.type == Type::WarmupCosineLr;
  if (decays_to_total(s.type) && s.total_steps == 0) s.total_steps = c.run.steps;
  if (s.type == Type::WarmupStableDecay && s.decay_steps == 0)
    s.decay_steps = std::clamp<int64_t>(s.total_steps / 10, 1, s.total_steps - s.warmup_steps);
  if (deepspeed_decay && s.total_num_steps == 0) s.total_num_steps = c.run.steps;
  if (s.type == Type::WarmupDecayLr && !s.warmup_max_lr) s.warmup_max_lr = kWarmupDecayMaxLr;
}
}  // namespace config

OptimizerRule OptimizerConfig::effective_rule() const {
  const auto* adam = std::get_if<Adam>(&rule);
  if (!adam || !adam_w_mode) return rule;
  return AdamW{.lr = adam->lr,
               .beta1 = adam->beta1,
               .beta2 = adam->beta2,
               .eps = adam->eps,
               .weight_decay = adam->weight_decay,
               .bias_correction = adam->bias_correction};
}

int data_ranks(const Config& config, int ranks) {
  return ranks / config.parallel.tensor / config.parallel.pipeline;
}

namespace {

// DeepSpeed's files have it whether or not there is something to cut.
void note_whole_inputs(Config& c) {
  constexpr const char* kKey = "activation_checkpointing.partition_activations";
  if (!c.recompute.partition_inputs || (c.parallel.tensor > 1 && !c.parallel.sequence)) return;
  const std::string why = c.parallel.sequence ? "parallel.sequence has cut what a block begins from"
                                              : "parallel.tensor is 1, so no other rank has a block's input";
  const std::string place = c.place(kKey);
  const std::string note = (place.empty() ? "" : place + ": ") + kKey + " has no effect here: " + why;
  std::vector<std::string>& notes = c.origin.notes;
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
}

}  // namespace

Config resolve(Config config, int ranks) {
  // A Config made or changed by a program has been checked by nobody: reading its JSON checks every value.
  parse_config(to_json(config), "configuration as printed by to_json");
  check_ranks(config, ranks);
  resolve_batch(config, data_ranks(config, ranks));
  config::derive(config);
  note_whole_inputs(config);
  return config;
}

}  // namespace zero

#include "zero/engine_options.h"

#include <ATen/Context.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include "base/glob.h"
#include "zero/error.h"
#include "zero/model_shape.h"

namespace zero {
namespace {

at::ScalarType scalar_type(const Config& config, const char* key, Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return at::kFloat;
    case Dtype::bf16:
      return at::kBFloat16;
    default:
      fail(ErrorKind::Unsupported, config.place(key),
           std::string(key) + ": the engine trains in fp32 or bf16, not in " + std::string(to_string(dtype)));
  }
}

WarmupCurve curve_of(SchedulerConfig::Warmup type) {
  return type == SchedulerConfig::Warmup::Log ? WarmupCurve::Log : WarmupCurve::Linear;
}

OneCycleLr one_cycle(const SchedulerConfig& s) {
  return {.cycle_min_lr = s.cycle_min_lr,
          .cycle_max_lr = s.cycle_max_lr,
          .decay_lr_rate = s.decay_lr_rate,
          .cycle_first_step_size = s.cycle_first_step_size,
          .cycle_second_step_size = s.cycle_second_step_size,
          .cycle_first_stair_count = s.cycle_first_stair_count,
          .cycle_second_stair_count = s.cycle_second_stair_count,
          .decay_step_size = s.decay_step_size,
          .cycle_momentum = s.cycle_momentum,
          .cycle_min_mom = s.cycle_min_mom,
          .cycle_max_mom = s.cycle_max_mom,
          .decay_mom_rate = s.decay_mom_rate};
}

void check_pattern(const Config& config, const std::string& key, std::string_view pattern,
                   const std::vector<std::string>& names) {
  const bool any = std::any_of(names.begin(), names.end(),
                               [&](const std::string& name) { return glob_matches(pattern, name); });
  require(any, ErrorKind::Config, config.place(key),
          key + ": expected a pattern of parameter names, got \"" + std::string(pattern) +
              "\", which matches none",
          "names look like \"" + names.front() + "\" and \"" + names.back() + "\"");
}

void add_names(const ModuleSpec& module, std::vector<std::string>& all, std::vector<std::string>& trained) {
  for (const ParameterSpec& parameter : module.parameters) {
    all.push_back(parameter.name);
    if (parameter.trainable) trained.push_back(parameter.name);
  }
  for (const ModuleSpec& child : module.children) add_names(child, all, trained);
}

}  // namespace

OptimizerSpec optimizer_of(const Config& config) {
  using Type = OptimizerConfig::Type;
  const OptimizerConfig& o = config.optimizer;
  require(!o.amsgrad, ErrorKind::Unsupported, config.place("optimizer.params.amsgrad"),
          "optimizer.params.amsgrad: AMSGrad is not there", "remove the key or set it to false");
  const double beta1 = o.betas[0], beta2 = o.betas[1];
  switch (o.type) {
    case Type::Sgd:
      return SGD{.lr = o.lr,
                 .momentum = o.momentum,
                 .dampening = o.dampening,
                 .weight_decay = o.weight_decay,
                 .nesterov = o.nesterov};
    case Type::Lion:
      return Lion{.lr = o.lr, .beta1 = beta1, .beta2 = beta2, .weight_decay = o.weight_decay};
    case Type::Adam:
    case Type::AdamW:
      break;
  }
  if (o.adam_w_mode)
    return AdamW{.lr = o.lr,
                 .beta1 = beta1,
                 .beta2 = beta2,
                 .eps = o.eps,
                 .weight_decay = o.weight_decay,
                 .bias_correction = o.bias_correction};
  return Adam{.lr = o.lr,
              .beta1 = beta1,
              .beta2 = beta2,
              .eps = o.eps,
              .weight_decay = o.weight_decay,
              .bias_correction = o.bias_correction};
}

namespace {

LrSchedule make_schedule(const SchedulerConfig& s) {
  using Type = SchedulerConfig::Type;
  switch (s.type) {
    case Type::Constant:
      return LrSchedule(ConstantLr{.warmup_steps = s.warmup_steps});
    case Type::Linear:
      return LrSchedule(LinearLr{
          .warmup_steps = s.warmup_steps, .total_steps = s.total_steps, .min_ratio = s.min_lr_ratio});
    case Type::Cosine:
      return LrSchedule(CosineLr{
          .warmup_steps = s.warmup_steps, .total_steps = s.total_steps, .min_ratio = s.min_lr_ratio});
    case Type::WarmupLr:
      return LrSchedule(WarmupLr{.warmup_min_lr = s.warmup_min_lr,
                                 .warmup_max_lr = s.warmup_max_lr,
                                 .warmup_num_steps = s.warmup_num_steps,
                                 .warmup_type = curve_of(s.warmup_type)});
    case Type::WarmupDecayLr:
      return LrSchedule(
          WarmupDecayLr{.total_num_steps = s.total_num_steps,
                        .warmup_min_lr = s.warmup_min_lr,
                        .warmup_max_lr = s.warmup_max_lr.value_or(WarmupDecayLr{}.warmup_max_lr),
                        .warmup_num_steps = s.warmup_num_steps,
                        .warmup_type = curve_of(s.warmup_type)});
    case Type::WarmupCosineLr:
      return LrSchedule(WarmupCosineLr{.total_num_steps = s.total_num_steps,
                                       .warmup_min_ratio = s.warmup_min_ratio,
                                       .warmup_num_steps = s.warmup_num_steps,
                                       .cos_min_ratio = s.cos_min_ratio,
                                       .warmup_type = curve_of(s.warmup_type)});
    case Type::OneCycle:
      return LrSchedule(one_cycle(s));
    case Type::LrRangeTest:
      return LrSchedule(LrRangeTest{.lr_range_test_min_lr = s.lr_range_test_min_lr,
                                    .lr_range_test_step_size = s.lr_range_test_step_size,
                                    .lr_range_test_step_rate = s.lr_range_test_step_rate,
                                    .lr_range_test_staircase = s.lr_range_test_staircase});
  }
  fail(ErrorKind::Internal, "scheduler", "a type that is not in the list");
}

}  // namespace

LrSchedule schedule_of(const Config& config) {
  try {
    return make_schedule(config.scheduler);
  } catch (const Error& error) {
    // The schedule knows nothing of files.
    std::string text = error.what();
    const std::string prefix = std::string(to_string(error.kind())) + " error: ";
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
    fail(error.kind(), config.place("scheduler"), "scheduler: " + text);
  }
}

EngineOptions engine_options_of(const Config& config, int ranks) {
  const PrecisionConfig& p = config.precision;
  EngineOptions options;
  options.stage = config.zero.stage;
  options.dtype = scalar_type(config, "data_types.param_dtype",
                              p.param_dtype.value_or(p.bf16 ? Dtype::bf16 : Dtype::f32));
  if (p.buffer_dtype) options.buffer_dtype = scalar_type(config, "data_types.buffer_dtype", *p.buffer_dtype);
  options.accumulation_dtype =
      scalar_type(config, "data_types.grad_accum_dtype", p.grad_accum_dtype.value_or(Dtype::f32));
  if (p.communication_dtype)
    options.communication_dtype = scalar_type(config, "communication_data_type", *p.communication_dtype);
  const auto accumulation = config.gradient_accumulation_steps;
  require(accumulation >= 1 && accumulation <= std::numeric_limits<int>::max(), ErrorKind::Usage,
          "engine_options_of", "the configuration is not resolved");
  options.accumulation_steps = static_cast<int>(accumulation);
  options.gradient_clipping = config.gradient_clipping;
  options.gradient_predivide_factor = config.prescale_gradients ? ranks : config.gradient_predivide_factor;
  options.schedule = schedule_of(config);
  for (const ParameterGroupConfig& group : config.parameter_groups)
    options.groups.push_back({.pattern = group.pattern,
                              .lr = group.lr,
                              .lr_scale = group.lr_scale,
                              .weight_decay = group.weight_decay});
  options.shard_group_ranks = config.parallel.shard_group_ranks;
  options.broadcast_initial_values = false;  // all ranks draw from the same seed
  options.budget_bytes = config.residency.budget_bytes;
  // -1 is "as much as the budget allows", which bounds what is fetched ahead anyway.
  options.prefetch_bytes = config.residency.prefetch_bytes < 0 ? kAllBytes : config.residency.prefetch_bytes;
  options.reduce_bucket_numel = config.zero.reduce_bucket_numel;
  options.share_parameters = config.residency.share;
  options.split_master = config.residency.split_master;
  options.group_numel = config.residency.group_numel;
  options.overlap = config.zero.overlap_comm.value_or(config.zero.stage == 3);
  return options;
}

MeshOptions mesh_options_of(const Config& config) {
  using Backend = ParallelConfig::Backend;
  const ParallelConfig& p = config.parallel;
  const bool cuda = at::hasCUDA() && at::getNumGPUs() > 0;
  require(p.backend != Backend::Nccl || cuda, ErrorKind::Unsupported, config.place("parallel.backend"),
          "parallel.backend: nccl needs a CUDA device, and there is none", "set it to auto, shm or gloo");
  MeshOptions options;
  const bool on_cpu = p.backend == Backend::Gloo || p.backend == Backend::Shm;
  options.device = cuda && !on_cpu ? torch::Device(torch::kCUDA) : torch::Device(torch::kCPU);
  if (p.backend == Backend::Shm) options.transport = "shm";
  if (p.backend == Backend::Gloo) options.transport = "gloo";
  if (p.backend == Backend::Nccl) options.transport = "nccl";
  // A year is for ever, and fits what the transports count in.
  constexpr double kMostSeconds = 365.0 * 24 * 3600;
  const double milliseconds = std::min(p.timeout_s, kMostSeconds) * 1000;
  options.timeout = std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(milliseconds)));
  return options;
}

int compute_threads_of(const Config& config, int local_ranks) {
  if (config.parallel.threads_per_rank > 0) return config.parallel.threads_per_rank;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, local_ranks));
}

std::vector<std::string> trained_names_of(const Config& config) {
  std::vector<std::string> names, trained;
  add_names(trained_spec(config), names, trained);
  for (const ParameterGroupConfig& group : config.parameter_groups)
    check_pattern(config, "parameter_groups", group.pattern, names);
  return trained;
}

void freeze(torch::nn::Module& module, const Config& config) {
  const std::vector<std::string> names = trained_names_of(config);
  const std::set<std::string> trained(names.begin(), names.end());
  for (auto& parameter : module.named_parameters())
    parameter.value().set_requires_grad(trained.contains(parameter.key()));
}

}  // namespace zero

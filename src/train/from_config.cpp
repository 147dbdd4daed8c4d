#include "zero/from_config.h"

#include <ATen/Context.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/error_text.h"
#include "base/glob.h"
#include "compute/cuda_library.h"
#include "compute/cuda_memory.h"
#include "plan/config_options.h"
#include "zero/error.h"
#include "zero/model_spec.h"

namespace zero {
namespace {

WarmupCurve curve_of(SchedulerConfig::Warmup type) {
  return type == SchedulerConfig::Warmup::Log ? WarmupCurve::Log : WarmupCurve::Linear;
}

DecayShape shape_of(SchedulerConfig::Decay shape) {
  if (shape == SchedulerConfig::Decay::Linear) return DecayShape::Linear;
  return shape == SchedulerConfig::Decay::Sqrt ? DecayShape::Sqrt : DecayShape::Cosine;
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
  return std::visit([](const auto& rule) -> OptimizerSpec { return rule; },
                    config.optimizer.effective_rule());
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
    case Type::Polynomial:
      return LrSchedule(PolynomialLr{.warmup_steps = s.warmup_steps,
                                     .total_steps = s.total_steps,
                                     .min_ratio = s.min_lr_ratio,
                                     .power = s.power});
    case Type::InverseSqrt:
      return LrSchedule(InverseSqrtLr{.warmup_steps = s.warmup_steps, .timescale = s.timescale});
    case Type::CosineRestarts:
      return LrSchedule(CosineRestartsLr{.warmup_steps = s.warmup_steps,
                                         .total_steps = s.total_steps,
                                         .min_ratio = s.min_lr_ratio,
                                         .cycles = s.cycles,
                                         .cycle_growth = s.cycle_growth});
    case Type::WarmupStableDecay:
      return LrSchedule(WarmupStableDecayLr{.warmup_steps = s.warmup_steps,
                                            .total_steps = s.total_steps,
                                            .decay_steps = s.decay_steps,
                                            .min_ratio = s.min_lr_ratio,
                                            .decay_shape = shape_of(s.decay_shape)});
  }
  fail(ErrorKind::Internal, "scheduler", "a type that is not in the list");
}

}  // namespace

LrSchedule schedule_of(const Config& config) {
  try {
    return make_schedule(config.scheduler);
  } catch (const Error& error) {
    // The schedule knows nothing of files.
    fail(error.kind(), config.place("scheduler"), "scheduler: " + text_without_kind(error));
  }
}

EngineOptions engine_options_of(const Config& config, int ranks) {
  EngineOptions options = options_from_config(config, ranks);
  options.schedule = schedule_of(config);
  return options;
}

int cuda_devices() {
  if (!detail::cuda_library().is_loaded) return 0;
  return at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0;
}

void use_cuda_settings(const Config& config, torch::Device device) {
  if (!device.is_cuda()) return;
  if (const auto settings = detail::allocator_settings(config.cuda.expandable_segments))
    detail::use_allocator_settings(*settings);
  const int64_t limit_bytes = config.cuda.memory_bytes;
  if (limit_bytes >= 0 && limit_bytes != kAllBytes)
    detail::limit_cuda_memory(device, limit_bytes, config.place("cuda.memory"));
}

namespace {

std::string why_no_device() {
  const detail::CudaLibrary& library = detail::cuda_library();
  return library.is_loaded ? "the driver finds none" : library.problem;
}

}  // namespace

MeshOptions mesh_options_of(const Config& config) {
  using Backend = ParallelConfig::Backend;
  const ParallelConfig& p = config.parallel;
  const int devices = cuda_devices();
  require(p.backend != Backend::Nccl || devices > 0, ErrorKind::Unsupported, config.place("parallel.backend"),
          "parallel.backend: nccl needs a CUDA device, and " + why_no_device(),
          "see to that, or set it to auto, shm or gloo");
  MeshOptions options;
  options.axes = {{"pp", p.pipeline}, {"dp", -1}, {"tp", p.tensor}};
  options.device = runs_on_cuda(p, devices) ? torch::kCUDA : torch::kCPU;
  if (p.backend == Backend::Shm) options.transport = "shm";
  if (p.backend == Backend::Gloo) options.transport = "gloo";
  if (p.backend == Backend::Nccl) options.transport = "nccl";
  options.communication = p.communication;
  options.tensor_across_hosts = p.tensor_across_hosts;
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

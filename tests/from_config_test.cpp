// From the configuration's words to those of engine, optimizer, schedule and mesh.
#include "zero/from_config.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "zero/gpt2.h"

namespace zero {
namespace {

Config config_of(const std::string& sections, int ranks = 2) {
  return resolve(parse_config("{\"train_batch_size\": 8, " + sections + "}", "f"), ranks);
}

EngineOptions options_of(const std::string& sections, int ranks = 2) {
  return engine_options_of(config_of(sections, ranks), ranks);
}

TEST(EngineOptions, DefaultsAreTheConfigurations) {
  const EngineOptions options = options_of("");
  EXPECT_EQ(options.stage, 0);
  EXPECT_EQ(options.dtype, at::kFloat);
  EXPECT_FALSE(options.buffer_dtype);
  EXPECT_EQ(options.accumulation_steps, 1);
  EXPECT_EQ(options.gradient_clipping, 1);
  EXPECT_EQ(options.budget_bytes, -1);
  EXPECT_EQ(options.prefetch_bytes, kAllBytes);
  EXPECT_EQ(options.gradient_predivide_factor, 1);
  EXPECT_TRUE(options.overlap);
  EXPECT_TRUE(options.share_parameters);
  EXPECT_TRUE(options.cpu_operators);
  EXPECT_FALSE(options.broadcast_initial_values);  // all ranks draw from one seed
  EXPECT_FALSE(options.communication_dtype);
  EXPECT_TRUE(options.groups.empty());
}

TEST(EngineOptions, CarriesEveryValue) {
  const EngineOptions options = options_of(R"("train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
      "gradient_predivide_factor": 2, "bf16": {"enabled": true}, "communication_data_type": "bf16",
      "data_types": {"grad_accum_dtype": "bf16", "buffer_dtype": "fp32"}, "zero_optimization": {"stage": 3,
      "reduce_bucket_size": 1000}, "residency": {"budget": "all", "prefetch": 0, "group_numel": 77,
      "split_master": false}, "cpu_operators": false,
      "parallel": {"shard_group": 2})",
                                           4);
  EXPECT_FALSE(options.cpu_operators);
  EXPECT_EQ(options.stage, 3);
  EXPECT_EQ(options.dtype, at::kBFloat16);
  EXPECT_EQ(options.buffer_dtype, at::kFloat);
  EXPECT_EQ(options.accumulation_dtype, at::kBFloat16);
  EXPECT_EQ(options.communication_dtype, at::kBFloat16);
  EXPECT_EQ(options.accumulation_steps, 2);
  EXPECT_EQ(options.gradient_clipping, 0.5);
  EXPECT_EQ(options.gradient_predivide_factor, 2);
  EXPECT_EQ(options.reduce_bucket_numel, 1000);
  EXPECT_EQ(options.budget_bytes, kAllBytes);
  EXPECT_EQ(options.prefetch_bytes, 0);
  EXPECT_EQ(options.group_numel, 77);
  EXPECT_FALSE(options.split_master);
  EXPECT_EQ(options.shard_group_ranks, 2);
  EXPECT_TRUE(options.overlap);
  EXPECT_FALSE(options_of(R"("zero_optimization": {"stage": 3, "overlap_comm": false})").overlap);
}

TEST(EngineOptions, ElementsOfDeepSpeedsLimitsAreBytesOfTheType) {
  const std::string zero =
      R"("zero_optimization": {"stage": 3, "stage3_max_live_parameters": 100, "stage3_prefetch_bucket_size": 10})";
  EXPECT_EQ(options_of(zero).budget_bytes, 400);
  EXPECT_EQ(options_of(zero).prefetch_bytes, 40);
  EXPECT_EQ(options_of(zero + R"(, "bf16": {"enabled": true})").budget_bytes, 200);
  EXPECT_EQ(options_of(zero + R"(, "residency": {"budget": 300})").budget_bytes, 300);
}

TEST(EngineOptions, PrescaleDividesByAllRanksFirst) {
  EXPECT_EQ(options_of(R"("prescale_gradients": true)", 4).gradient_predivide_factor, 4);
}

TEST(EngineOptions, GroupsKeepTheirPatterns) {
  const EngineOptions options = options_of(
      R"("parameter_groups": [{"pattern": "*.bias", "weight_decay": 0}, {"pattern": "h[0]*", "lr": 0.5}])");
  ASSERT_EQ(options.groups.size(), 2);
  EXPECT_EQ(options.groups[0].weight_decay, 0);
  EXPECT_FALSE(options.groups[0].lr);
  EXPECT_EQ(options.groups[1].lr, 0.5);
  EXPECT_EQ(options.groups[1].pattern, "h[0]*");
}

TEST(OptimizerOf, IsTheConfiguredRule) {
  const auto adamw = optimizer_of(config_of(
      R"("optimizer": {"type": "Adam", "params": {"lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.2,
         "bias_correction": false}})"));
  const auto& a = std::get<AdamW>(adamw);
  EXPECT_EQ(a.lr, 0.1);
  EXPECT_EQ(a.beta1, 0.8);
  EXPECT_EQ(a.beta2, 0.9);
  EXPECT_EQ(a.eps, 1e-6);
  EXPECT_EQ(a.weight_decay, 0.2);
  EXPECT_FALSE(a.bias_correction);
  const auto adam = optimizer_of(
      config_of(R"("optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "weight_decay": 0.3}})"));
  EXPECT_EQ(std::get<Adam>(adam).weight_decay, 0.3);
  const auto sgd = optimizer_of(
      config_of(R"("optimizer": {"type": "SGD", "params": {"lr": 0.2, "momentum": 0.9, "nesterov": true}})"));
  EXPECT_EQ(std::get<SGD>(sgd).momentum, 0.9);
  EXPECT_TRUE(std::get<SGD>(sgd).nesterov);
  const auto lion = optimizer_of(
      config_of(R"("optimizer": {"type": "Lion", "params": {"lr": 0.4, "betas": [0.9, 0.95]}})"));
  EXPECT_EQ(std::get<Lion>(lion).beta2, 0.95);
  const auto lamb = optimizer_of(config_of(R"("optimizer": {"type": "LAMB", "params": {"max_coeff": 5}})"));
  EXPECT_EQ(std::get<LAMB>(lamb).max_coeff, 5);
}

TEST(ScheduleOf, EveryType) {
  const auto spec = [](const std::string& params) {
    return schedule_of(config_of("\"scheduler\": " + params + ", \"run\": {\"steps\": 50}")).spec();
  };
  EXPECT_EQ(std::get<ConstantLr>(spec(R"({"type": "Constant", "params": {"warmup_steps": 3}})")).warmup_steps,
            3);
  EXPECT_EQ(std::get<LinearLr>(spec(R"({"type": "Linear", "params": {}})")).total_steps, 50);
  const auto cosine =
      std::get<CosineLr>(spec(R"({"type": "Cosine", "params": {"warmup_steps": 4, "min_lr_ratio": 0.1}})"));
  EXPECT_EQ(cosine.warmup_steps, 4);
  EXPECT_EQ(cosine.total_steps, 50);
  EXPECT_EQ(cosine.min_ratio, 0.1);
  const auto warm = std::get<WarmupLr>(
      spec(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 9, "warmup_type": "linear"}})"));
  EXPECT_EQ(warm.warmup_num_steps, 9);
  EXPECT_EQ(warm.warmup_type, WarmupCurve::Linear);
  EXPECT_FALSE(warm.warmup_max_lr);
  const auto decay =
      std::get<WarmupDecayLr>(spec(R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9}})"));
  EXPECT_EQ(decay.total_num_steps, 50);
  EXPECT_EQ(decay.warmup_max_lr, 0.001);
  const auto half = std::get<WarmupCosineLr>(
      spec(R"({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 5, "cos_min_ratio": 0.2}})"));
  EXPECT_EQ(half.cos_min_ratio, 0.2);
  const auto cycle = std::get<OneCycleLr>(spec(
      R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.3, "cycle_second_step_size": 7}})"));
  EXPECT_EQ(cycle.cycle_max_lr, 0.3);
  EXPECT_EQ(cycle.cycle_second_step_size, 7);
  const auto range =
      std::get<LrRangeTest>(spec(R"({"type": "LRRangeTest", "params": {"lr_range_test_step_size": 11}})"));
  EXPECT_EQ(range.lr_range_test_step_size, 11);
  const auto polynomial =
      std::get<PolynomialLr>(spec(R"({"type": "Polynomial", "params": {"power": 2, "total_steps": 40}})"));
  EXPECT_EQ(polynomial.power, 2);
  EXPECT_EQ(polynomial.total_steps, 40);
  const auto inverse = std::get<InverseSqrtLr>(
      spec(R"({"type": "InverseSqrt", "params": {"warmup_steps": 8, "timescale": 100}})"));
  EXPECT_EQ(inverse.warmup_steps, 8);
  EXPECT_EQ(inverse.timescale, 100);
  const auto restarts = std::get<CosineRestartsLr>(
      spec(R"({"type": "CosineRestarts", "params": {"cycles": 3, "cycle_growth": 2}})"));
  EXPECT_EQ(restarts.cycles, 3);
  EXPECT_EQ(restarts.cycle_growth, 2);
  const auto stable = std::get<WarmupStableDecayLr>(spec(
      R"({"type": "WarmupStableDecay", "params": {"warmup_steps": 5, "min_lr_ratio": 0.1, "decay_shape": "linear"}})"));
  EXPECT_EQ(stable.decay_steps, 5);  // a tenth of run.steps
  EXPECT_EQ(stable.total_steps, 50);
  EXPECT_EQ(stable.min_ratio, 0.1);
  EXPECT_EQ(stable.decay_shape, DecayShape::Linear);
}

TEST(ScheduleOf, ErrorsSayWhereItStands) {
  EXPECT_ERROR(
      schedule_of(config_of(
          R"("scheduler": {"type": "WarmupStableDecay", "params": {"decay_steps": 9}}, "run": {"steps": 5})")),
      Config, "scheduler.params.decay_steps: expected at most total_steps - warmup_steps 5");
  EXPECT_ERROR(schedule_of(config_of(
                   R"("scheduler": {"type": "Linear", "params": {"warmup_steps": 5}}, "run": {"steps": 5})")),
               Config, "f:1: scheduler.params.warmup_steps: expected less than total_steps 5");
}

TEST(MeshOptionsOf, TimeoutAndTransport) {
  const MeshOptions options =
      mesh_options_of(config_of(R"("parallel": {"timeout_s": 2.5, "backend": "gloo"})"));
  EXPECT_EQ(options.timeout.count(), 2500);
  EXPECT_EQ(options.transport, "gloo");
  EXPECT_TRUE(options.device.is_cpu());
  EXPECT_EQ(mesh_options_of(config_of("")).device.is_cuda(), cuda_devices() > 0);
  EXPECT_EQ(compute_threads_of(config_of(R"("parallel": {"threads_per_rank": 3})"), 2), 3);
  EXPECT_GE(compute_threads_of(config_of(""), 1000000), 1);
}

const char* const kTiny =
    R"("model": {"vocab_size": 20, "context_length": 4, "layers": 2, "width": 4, "heads": 1})";

TEST(Freeze, FrozenParametersNeedNoGradient) {
  const Config config = config_of(std::string(kTiny) + R"(, "frozen": ["wte.*", "h.0.*"])");
  Gpt2 model(std::get<Gpt2Shape>(shape_of(config)));
  freeze(*model, config);
  int trained = 0;
  for (const auto& parameter : model->named_parameters()) {
    const bool frozen = parameter.key().starts_with("wte.") || parameter.key().starts_with("h.0.");
    EXPECT_EQ(parameter.value().requires_grad(), !frozen) << parameter.key();
    trained += !frozen;
  }
  EXPECT_EQ(trained_names_of(config).size(), trained);
}

TEST(Freeze, PatternsThatMatchNothingAreErrors) {
  const std::string tiny = kTiny;
  EXPECT_ERROR(trained_names_of(config_of(tiny + R"(, "frozen": ["head.*"])")), Config, "frozen: expected");
  EXPECT_ERROR(trained_names_of(config_of(tiny + R"(, "frozen": ["*"])")), Config, "something to train");
  EXPECT_ERROR(trained_names_of(config_of(tiny + R"(, "parameter_groups": [{"pattern": "x*", "lr": 1}])")),
               Config, "parameter_groups: expected a pattern of parameter names, got \"x*\"");
}

}  // namespace
}  // namespace zero

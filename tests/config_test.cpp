// What the configuration accepts, and what it means.

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "support/config_text.h"
#include "support/expect_error.h"

namespace zero {
namespace {

using test::error_of;
using test::parse;

std::string read_repository_file(const std::string& path) {
  std::ifstream file(std::string(ZERO_TEST_DATA) + "/../" + path);
  EXPECT_TRUE(file.good()) << path;
  return {(std::istreambuf_iterator<char>(file)), {}};
}

TEST(Config, AnEmptyObjectIsAllDefaults) {
  EXPECT_EQ(parse("{}"), Config{});
  EXPECT_EQ(parse("\xEF\xBB\xBF{}"), Config{});  // with a byte order mark
  EXPECT_EQ(Config{}.gradient_clipping, 1.0);
  EXPECT_EQ(Config{}.optimizer.rule, OptimizerRule(AdamW{.lr = 1e-3, .beta2 = 0.999, .weight_decay = 0}));
}

TEST(Config, CommentsAndTrailingCommas) {
  const Config c = parse(R"({ // a comment with "quotes" and {braces}
    /* one
       more */
    "model": {"width": 64, "heads": 4, /* inside */ },
    "frozen": ["wte.*", "a//b", "c/*d*/",], // the strings are not comments
  })");
  EXPECT_EQ(c.model.width, 64);
  EXPECT_EQ(c.frozen, (std::vector<std::string>{"wte.*", "a//b", "c/*d*/"}));
}

TEST(Config, IntegersMayBeWrittenWithAnExponent) {
  const Config c = parse(R"({"zero_optimization": {"reduce_bucket_size": 5e8, "prefetch_bucket_size": 2.0e+7},
                             "run": {"steps": 1e2}})");
  EXPECT_EQ(c.zero.reduce_bucket_numel, 500000000);
  EXPECT_EQ(c.zero.prefetch_numel, 20000000);
  EXPECT_EQ(c.run.steps, 100);
  EXPECT_EQ(error_of(R"({"run": {"steps": 1e300}})"),
            "config error: f:1: run.steps: expected an integer >= 1, got 1e300");
  EXPECT_EQ(parse(R"({"run": {"seed": 9007199254740992}})").run.seed, int64_t{1} << 53);
}

TEST(Config, Aliases) {
  EXPECT_TRUE(parse(R"({"bfloat16": {"enabled": true}})").precision.bf16);
  EXPECT_EQ(parse(R"({"zero_optimization": true})").zero.stage, 1);
  EXPECT_EQ(parse(R"({"zero_optimization": false})").zero.stage, 0);
  for (const char* prefix : {"", "stage3_"}) {
    const std::string p(prefix);
    const Config c =
        parse("{\"zero_optimization\": {\"" + p + "prefetch_bucket_size\": 7, \"" + p +
              "max_live_parameters\": 8, \"" + p + "max_reuse_distance\": 1e9, \"" + p +
              "param_persistence_threshold\": 1e5, \"" + p + "gather_16bit_weights_on_model_save\": true}}");
    EXPECT_EQ(c.zero.prefetch_numel, 7);
    EXPECT_EQ(c.zero.max_live_numel, 8);
    ASSERT_EQ(c.origin.notes.size(), 1u) << "what is not done is noted";
    EXPECT_NE(c.origin.notes[0].find("gather_16bit_weights_on_model_save"), std::string::npos);
  }
  EXPECT_EQ(parse(R"({"model": {"n_positions": 99}})").model.context_length, 99);
  EXPECT_EQ(parse(R"({"steps_per_print": 3})").logging.print_interval_steps, 3);
  EXPECT_EQ(parse(R"({"steps_per_print": null})").logging.print_interval_steps, 10);
  EXPECT_EQ(parse(R"({"zero_optimization": {"stage": 3, "mics_shard_size": 4}})").parallel.shard_group_ranks,
            4);
  EXPECT_EQ(parse(R"({"zero_optimization": {"stage": 3, "mics_shard_size": -1}})").parallel.shard_group_ranks,
            0);
  EXPECT_EQ(parse(R"({"communication_data_type": "bfloat16"})").precision.communication_dtype, Dtype::bf16);
}

TEST(Config, AutoKeepsTheDefaultInDeepSpeedsOwnSections) {
  const Config c = parse(R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto",
                             "stage3_prefetch_bucket_size": "auto", "sub_group_size": "auto",
                             "round_robin_gradients": "auto"},
                             "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}})");
  EXPECT_EQ(c.zero.reduce_bucket_numel, ZeroConfig{}.reduce_bucket_numel);
  EXPECT_EQ(c.zero.prefetch_numel, std::nullopt);
  EXPECT_FALSE(c.precision.bf16);
}

TEST(Config, AutoOfOtherProgramsIsTheDefaultAndNoted) {
  const Config c = parse(
      R"({"_remark": [1], "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_clipping": "auto",
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_num_steps": "auto"}}})");
  EXPECT_EQ(c.gradient_clipping, Config{}.gradient_clipping);
  EXPECT_EQ(c.optimizer, Config{}.optimizer);
  EXPECT_EQ(resolve(c, 4).train_batch_size, 8);
  ASSERT_EQ(c.origin.notes.size(), 6u);
  EXPECT_NE(c.origin.notes[2].find("optimizer.params.lr: \"auto\""), std::string::npos) << c.origin.notes[2];
  EXPECT_EQ(error_of(R"({"run": {"steps": "auto"}})").find("config error: f:1: run.steps: expected"), 0u);
  EXPECT_ERROR(resolve(parse(R"({"train_micro_batch_size_per_gpu": "auto"})"), 2), Config,
               "write train_micro_batch_size_per_gpu");
}

TEST(Config, Fp16IsDeepSpeeds) {
  const Config given =
      parse(R"({"train_batch_size": 1, "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12,
      "loss_scale_window": 500, "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 4,
      "at_minimum": "skip"}})");
  EXPECT_EQ(given.precision.loss_scaling, (LossScaling{.initial_scale_power = 12,
                                                       .window = 500,
                                                       .hysteresis = 3,
                                                       .consecutive_hysteresis = true,
                                                       .min_scale = 4,
                                                       .at_minimum = LossScaling::AtMinimum::Skip}));
  EXPECT_EQ(resolve(given, 1).precision.param_dtype, Dtype::f16);
  const Config defaults = parse(R"({"fp16": {"enabled": true, "rule": "gradscaler"}})");
  EXPECT_EQ(defaults.precision.loss_scaling, (LossScaling{.rule = LossScaling::Rule::GradScaler}));
  EXPECT_EQ(parse(R"({"fp16": {"enabled": true, "loss_scale": 128}})").precision.loss_scaling.fixed_scale,
            128);
}

TEST(Config, OptimizersAreNamedInAnyCase) {
  EXPECT_EQ(parse(R"({"optimizer": {"type": "adamw"}})").optimizer.rule,
            OptimizerRule(AdamW{.weight_decay = 0}));
  const Config adam =
      parse(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "amsgrad": false,
                                "bias_correction": false, "eps": 1e-6, "lr": 2, "betas": [0, 0.5],
                                "weight_decay": 0.25}}})");
  const Adam expected{
      .lr = 2, .beta1 = 0, .beta2 = 0.5, .eps = 1e-6, .weight_decay = 0.25, .bias_correction = false};
  EXPECT_EQ(adam.optimizer.rule, OptimizerRule(expected));
  EXPECT_FALSE(adam.optimizer.adam_w_mode);
  const Config sgd =
      parse(R"({"optimizer": {"params": {"momentum": 0.9, "nesterov": true}, "type": "SGD"}})");
  EXPECT_EQ(sgd.optimizer.rule, OptimizerRule(SGD{.momentum = 0.9, .nesterov = true}));
  EXPECT_EQ(std::get<Lion>(
                parse(R"({"optimizer": {"type": "Lion", "params": {"betas": [0.9, 0.99]}}})").optimizer.rule)
                .beta2,
            0.99);
  const auto lamb = std::get<LAMB>(
      parse(R"({"optimizer": {"type": "Lamb", "params": {"lr": 0.5, "max_coeff": 4}}})").optimizer.rule);
  EXPECT_EQ(lamb, (LAMB{.lr = 0.5, .eps = 1e-8, .weight_decay = 0, .max_coeff = 4, .min_coeff = 0.01}));
}

// Whatever rules there will be: every key of every row is read, printed and described.
TEST(Config, EveryRuleIsReadAndPrintedAsItsRowSays) {
  for_each_rule([](const OptimizerRule& defaults) {
    OptimizerRule rule = defaults;
    for (const Hyperparameter& one : hyperparameters_of(rule)) {
      if (one.kind == Hyperparameter::Kind::Switch)
        set_flag(rule, one, !flag_of(rule, one));
      else
        set_numbers(rule, one, {0.5, 0.25});
    }
    if (auto* sgd = std::get_if<SGD>(&rule)) sgd->dampening = 0;
    if (auto* adafactor = std::get_if<Adafactor>(&rule))
      adafactor->relative_step = true;  // warmup_init needs it
    Config config;
    config.optimizer.rule = rule;
    EXPECT_EQ(parse(to_json(config)), config) << rule_name(rule);
    for (const Hyperparameter& one : hyperparameters_of(rule)) {
      const std::string path = "optimizer.params." + std::string(one.key);
      const auto keys = config_keys();
      const auto described =
          std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& key) { return key.path == path; });
      ASSERT_NE(described, keys.end()) << path;
      EXPECT_NE(described->default_value, "null") << path;
    }
  });
}

TEST(Config, SchedulersCarryTheirParameters) {
  using Type = SchedulerConfig::Type;
  const auto schedule = [](const std::string& type, const std::string& params) {
    return parse("{\"scheduler\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}}").scheduler;
  };
  SchedulerConfig s =
      schedule("WarmupLR", R"("warmup_min_lr": 1e-6, "warmup_max_lr": 1e-3, "warmup_num_steps": 0,
                                              "warmup_type": "linear", "last_batch_iteration": -1)");
  EXPECT_EQ(s.type, Type::WarmupLr);
  EXPECT_EQ(s.warmup_max_lr, 1e-3);
  EXPECT_EQ(s.warmup_num_steps, 0);
  EXPECT_EQ(s.warmup_type, SchedulerConfig::Warmup::Linear);
  s = schedule("WarmupCosineLR", R"("total_num_steps": 5000, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.2)");
  EXPECT_EQ(s.total_num_steps, 5000);
  EXPECT_EQ(s.warmup_num_steps, 1000);
  EXPECT_EQ(s.cos_min_ratio, 0.2);
  s = schedule("OneCycle", R"("cycle_min_lr": 0.0001, "cycle_max_lr": 0.001, "cycle_first_step_size": 10,
                              "decay_step_size": 3, "cycle_momentum": false)");
  EXPECT_EQ(s.cycle_max_lr, 0.001);
  EXPECT_EQ(s.cycle_second_step_size, std::nullopt);
  EXPECT_FALSE(s.cycle_momentum);
  s = schedule("LRRangeTest", R"("lr_range_test_step_size": 200, "lr_range_test_staircase": true)");
  EXPECT_EQ(s.lr_range_test_step_size, 200);
  EXPECT_TRUE(s.lr_range_test_staircase);
  s = schedule("Linear", R"("warmup_steps": 3, "total_steps": 9, "min_lr_ratio": 0.5)");
  EXPECT_EQ(s.total_steps, 9);
  EXPECT_EQ(schedule("Constant", R"("warmup_steps": 3)").warmup_steps, 3);
}

TEST(Config, ModelSizesAndNumbers) {
  const auto model = [](const std::string& text) { return parse("{\"model\": {" + text + "}}").model; };
  EXPECT_EQ(model(R"("size": "gpt2")"), ModelConfig{});
  EXPECT_EQ(model(R"("size": "gpt2-medium")").width, 1024);
  EXPECT_EQ(model(R"("size": "gpt2-large")").layers, 36);
  EXPECT_EQ(model(R"("size": "gpt2-xl")").heads, 25);
  const ModelConfig ten_billion = model(R"("heads": 64, "size": "gpt2-10b", "vocab_size": 50304)");
  EXPECT_EQ(ten_billion.layers, 50);
  EXPECT_EQ(ten_billion.width, 4096);
  EXPECT_EQ(ten_billion.heads, 64);  // a number wins, wherever it stands
  EXPECT_EQ(ten_billion.vocab_size, 50304);
  const ModelConfig tiny = model(R"("size": "tinyllama-1.1b", "tied_head": true)");
  EXPECT_EQ(tiny.type, "llama");
  EXPECT_EQ(tiny.kv_heads, 4);
  EXPECT_EQ(tiny.tied_head, true);
  EXPECT_EQ(model(R"("size": "gpt-neox-20b")").layers, 44);
  EXPECT_EQ(
      error_of(R"({"model": {"size": "gpt2-xxl"}})"),
      "config error: f:1: model.size: expected \"gpt2\", \"gpt2-medium\", \"gpt2-large\", \"gpt2-xl\", "
      "\"gpt2-10b\", \"tinyllama-1.1b\" or \"gpt-neox-20b\", got \"gpt2-xxl\"; did you mean \"gpt2-xl\"?");
}

TEST(Config, Bytes) {
  const auto budget = [](const std::string& value) {
    return parse("{\"residency\": {\"budget\": " + value + "}}").residency.budget_bytes;
  };
  EXPECT_EQ(budget("1048576"), 1048576);
  EXPECT_EQ(budget("\"512MiB\""), 512ll << 20);
  EXPECT_EQ(budget("\"1.5 GB\""), 1500000000);
  EXPECT_EQ(budget("\"2kib\""), 2048);
  EXPECT_EQ(budget("\"77\""), 77);
  EXPECT_EQ(budget("\"all\""), kAllBytes);
  EXPECT_EQ(budget("null"), -1);
  for (const char* bad : {"-1", "1.5", "\"-1MiB\"", "\"MiB\"", "\"1e30GB\"", "\"nan\"", "\"inf\"", "true",
                          "\"\"", "\"1 MiB x\"", "\"0x10\""}) {
    EXPECT_NE(error_of("{\"residency\": {\"budget\": " + std::string(bad) + "}}"), "") << bad;
  }
}

TEST(Config, ParameterGroupsAndPlaces) {
  const Config c = parse(R"({"parameter_groups": [{"pattern": "*.bias", "weight_decay": 0},
    {"pattern": "wte.*", "lr": 1e-4},
    {"pattern": "h.?.*", "lr_scale": 0.5}],
    "model": {
      "layers": 3}})");
  ASSERT_EQ(c.parameter_groups.size(), 3u);
  EXPECT_EQ(c.parameter_groups[0].weight_decay, 0.0);
  EXPECT_EQ(c.parameter_groups[0].lr, std::nullopt);
  EXPECT_EQ(c.parameter_groups[1].lr, 1e-4);
  EXPECT_EQ(c.parameter_groups[2].lr_scale, 0.5);
  EXPECT_EQ(c.place("parameter_groups[1].lr"), "f:2");
  EXPECT_EQ(c.place("parameter_groups[2].lr"), "f:3");  // not given: its group
  EXPECT_EQ(c.place("model.layers"), "f:5");
  EXPECT_EQ(c.place("model.width"), "f:4");
  EXPECT_EQ(c.place("data.train"), "f");
  EXPECT_EQ(Config{}.place("data.train"), "configuration");
}

TEST(Config, OverridesComeLastAndNameTheirPlace) {
  const char* text = R"({"zero_optimization": {"stage": 1}, "parameter_groups": [{"pattern": "a"}]})";
  const Config c =
      parse(text, {"zero_optimization.stage=2", "zero_optimization.stage=3", "run.directory=runs/x=y",
                   "data.train=some file.tok", "parameter_groups.0.lr=0.5", "model={\"width\": 24}",
                   "model.heads=2", "frozen=[\"a\",]", "data.tokenizer=\"12\"", "run.steps= 5e1 "});
  EXPECT_EQ(c.zero.stage, 3);
  EXPECT_EQ(c.run.directory, "runs/x=y");
  EXPECT_EQ(c.data.train, "some file.tok");
  EXPECT_EQ(c.parameter_groups[0].lr, 0.5);
  EXPECT_EQ(c.model.width, 24);
  EXPECT_EQ(c.model.heads, 2);
  EXPECT_EQ(c.frozen, std::vector<std::string>{"a"});
  EXPECT_EQ(c.data.tokenizer, "12");
  EXPECT_EQ(c.run.steps, 50);
  EXPECT_EQ(c.place("zero_optimization.stage"), "--set zero_optimization.stage=3");
}

TEST(Config, MonitorsAndTables) {
  const Config c = parse(
      R"({"tensorboard": {"enabled": true, "output_path": "logs", "job_name": "auto"}, "csv_monitor": null,
                             "comms_logger": {"verbose": false}, "wall_clock_breakdown": true, "dump_state": true})");
  EXPECT_TRUE(c.logging.tensorboard.enabled);
  EXPECT_EQ(c.logging.tensorboard.output_path, "logs");
  EXPECT_EQ(c.logging.tensorboard.job_name, "DeepSpeedJobName");
  EXPECT_FALSE(c.logging.csv.enabled);
  EXPECT_TRUE(c.logging.comms_logger) << "by its presence, as in DeepSpeed";
  EXPECT_TRUE(c.logging.wall_clock_breakdown && c.logging.dump_state && !c.logging.memory_breakdown);
  EXPECT_TRUE(c.origin.notes.empty());
  EXPECT_FALSE(parse(R"({"comms_logger": {"enabled": false}})").logging.comms_logger);
  EXPECT_EQ(parse(to_json(c)), c);
}

TEST(Config, NumbersMayStandInQuotesAndAreNoted) {
  const Config c = parse(R"({
    "optimizer": {"type": "AdamW", "params": {"lr": "1e-5", "betas": ["0.9", 0.95], "weight_decay": "0"}},
    "train_micro_batch_size_per_gpu": "4", "zero_optimization": {"stage": "3", "allgather_bucket_size": "2e8"},
    "run": {"directory": "7"}})");
  const auto& rule = std::get<AdamW>(c.optimizer.rule);
  EXPECT_EQ(rule.lr, 1e-5);
  EXPECT_EQ(rule.beta2, 0.95);
  EXPECT_EQ(c.train_micro_batch_size, 4);
  EXPECT_EQ(c.zero.stage, 3);
  EXPECT_EQ(c.run.directory, "7");
  ASSERT_EQ(c.origin.notes.size(), 7u) << "one for each, and that allgather_bucket_size has no effect";
  EXPECT_EQ(c.origin.notes[0], "f:3: train_micro_batch_size_per_gpu: \"4\" is read as the number 4");
  for (const char* none : {"\"\"", "\"1e-5x\"", "\"0x10\"", "\"nan\"", "\" 1\"", "[]", "\"true\""})
    EXPECT_THROW(parse(std::string(R"({"gradient_clipping": )") + none + "}"), Error) << none;
}

TEST(Config, FlopsProfilerAndWandb) {
  const Config c = parse(R"({
    "flops_profiler": {"enabled": true, "profile_step": 5, "module_depth": 2, "top_modules": 3, "detailed": false,
                       "output_file": null, "recompute_fwd_factor": 0.0},
    "wandb": {"enabled": true, "group": null, "team": "us", "project": "auto"},
    "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}})");
  EXPECT_EQ(c.logging.flops, (FlopsProfilerConfig{true, 5, 2, 3, false, ""}));
  EXPECT_EQ(c.logging.wandb, (WandbConfig{true, "us", "", "deepspeed"}));
  ASSERT_EQ(c.origin.notes.size(), 1u);
  EXPECT_NE(c.origin.notes[0].find("zero_hpz_partition_size has no effect here"), std::string::npos);
  EXPECT_EQ(parse(to_json(c)), c);
  EXPECT_THROW(parse(R"({"flops_profiler": {"profile_step": 0}})"), Error);
  EXPECT_THROW(parse(R"({"wandb": {"api_key": "x"}})"), Error);
}

// Files as DeepSpeed's users have them, without what this version does not do.
TEST(Config, DeepSpeedFiles) {
  const Config zero2 = parse(R"({
    "train_batch_size": 32, "gradient_accumulation_steps": 2, "steps_per_print": 2000, "wall_clock_breakdown": false,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7,
                                              "torch_adam": true}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}},
    "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true,
                          "reduce_scatter": true, "reduce_bucket_size": 2e8, "contiguous_gradients": true,
                          "offload_optimizer": {"device": "none", "pin_memory": true}},
    "activation_checkpointing": {"partition_activations": false, "profile": false},
    "flops_profiler": {"enabled": false, "profile_step": 1}, "elasticity": {"enabled": false},
    "tensorboard": {"enabled": false, "output_path": "x"}})");
  EXPECT_EQ(zero2.zero.stage, 2);
  EXPECT_EQ(zero2.zero.overlap_comm, true);
  EXPECT_EQ(zero2.scheduler.warmup_num_steps, 500);
  EXPECT_EQ(resolve(zero2, 4).train_micro_batch_size, 4);
  ASSERT_EQ(zero2.origin.notes.size(), 2u);
  EXPECT_NE(zero2.origin.notes[0].find("allgather_bucket_size has no effect"), std::string::npos)
      << zero2.origin.notes[0];
  EXPECT_EQ(zero2.origin.notes[1], "f:4: optimizer.params.torch_adam has no effect here: there is one Adam");

  const Config zero3 = parse(R"({
    "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5, "prescale_gradients": true,
    "gradient_predivide_factor": 2.0, "communication_data_type": "bf16", "data_types": {"grad_accum_dtype": "fp32"},
    "zero_allow_untested_optimizer": true,
    "zero_optimization": {"stage": 3, "sub_group_size": 1e8, "stage3_max_live_parameters": 1e9,
                          "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 5e8,
                          "stage3_param_persistence_threshold": 1e6, "offload_param": null,
                          "zero_hpz_partition_size": 1, "ignore_unused_parameters": true,
                          "elastic_checkpoint": false, "round_robin_gradients": false},
    "aio": {"thread_count": 1, "queue_depth": 8}})");
  EXPECT_EQ(zero3.gradient_clipping, 0.5);
  EXPECT_TRUE(zero3.prescale_gradients);
  EXPECT_EQ(zero3.gradient_predivide_factor, 2);
  EXPECT_EQ(zero3.zero.max_live_numel, 1000000000);
  EXPECT_EQ(zero3.zero.persistent_numel, 1000000);
  EXPECT_EQ(resolve(zero3, 1).offload.how.piece_numel, OffloadOptions{}.piece_numel) << "the smaller one";
  EXPECT_EQ(zero3.origin.notes.size(), 1u);  // untested optimizer
}

TEST(Config, ParametersHaveDeepSpeedsSpellings) {
  const Config own =
      parse(R"({"zero_optimization": {"stage": 3}, "offload": {"parameter": "disk", "path": "/d",
                               "parameter_host_numel": 1e6, "pin_memory": false}})");
  const Config theirs = parse(R"({"zero_optimization": {"stage": 3,
    "offload_param": {"device": "nvme", "nvme_path": "/d", "max_in_cpu": 1e6, "pin_memory": false},
    "offload_optimizer": {"device": "none", "nvme_path": "/d", "pin_memory": false}}})");
  EXPECT_EQ(own.offload.parameter, TierChoice::Disk);
  EXPECT_EQ(own.offload.how.parameter_host_numel, 1000000);
  EXPECT_EQ(own, theirs) << "both sections may name the one directory";
  EXPECT_EQ(parse(R"({"zero_optimization": {"stage": 3, "cpu_offload_param": true}})").offload.parameter,
            TierChoice::Host);
}

TEST(Config, MastersFollowOptimizerStatesUnlessTold) {
  EXPECT_EQ(parse(R"({"offload": {"optimizer": "host"}})").offload.master_choice(), TierChoice::Host);
  EXPECT_EQ(parse(R"({"offload": {"optimizer": "host", "master": "none"}})").offload.master_choice(),
            TierChoice::Device);
}

TEST(Config, GeminisKeysSayWhereStatesAre) {
  const auto of = [](const std::string& keys) {
    return parse(R"({"zero_optimization": {"stage": 3}, "gemini": {)" + keys + "}}");
  };
  const Config half =
      of(R"("placement_policy": "static", "offload_optim_frac": 0.5, "shard_param_frac": 0.25)");
  EXPECT_EQ(half.offload.optimizer, TierChoice::Host);
  EXPECT_EQ(half.offload.how.ratio, 0.5);
  EXPECT_EQ(half.offload.parameter, TierChoice::Device);
  EXPECT_EQ(half.residency.gathered_ratio, 0.75);
  const Config away = of(R"("shard_param_frac": 1, "offload_optim_frac": 1, "offload_param_frac": 0.5)");
  EXPECT_EQ(away.offload.parameter, TierChoice::Host);
  EXPECT_EQ(away.offload.how.parameter_ratio, 0.5);
  EXPECT_EQ(of(R"("offload_optim_frac": 0)").offload.optimizer, TierChoice::Device);
  const Config cpu = of(R"("tensor_placement_policy": "cpu", "shard_strategy": "TensorShardStrategy")");
  for (const TierChoice kind : {cpu.offload.parameter, cpu.offload.gradient, cpu.offload.optimizer})
    EXPECT_EQ(kind, TierChoice::Host);
  EXPECT_EQ(cpu.residency.shard_unit, ShardUnit::Tensor);
  const Config chosen = parse(R"({"gemini": {"placement_policy": "auto"}, "offload": {"memory": "1GiB"}})");
  for (const TierChoice kind : {chosen.offload.parameter, chosen.offload.gradient, chosen.offload.optimizer})
    EXPECT_EQ(kind, TierChoice::Auto);
  EXPECT_TRUE(chosen.offload.is_auto());
}

TEST(Config, OffloadHasDeepSpeedsSpellings) {
  const Config own = parse(R"({"offload": {"optimizer": "disk", "path": "/d", "ratio": 0.5, "buffer_count": 5,
                               "read_ahead": false, "write_behind": true, "block_bytes": 8192, "queue_depth": 3,
                               "threads": 4}})");
  const Config theirs = parse(R"({
    "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/d", "ratio": 0.5, "buffer_count": 5,
                                                "pipeline_read": false, "pipeline_write": true}},
    "aio": {"block_size": 8192, "queue_depth": 3, "thread_count": 4}})");
  EXPECT_EQ(own.offload.optimizer, TierChoice::Disk);
  EXPECT_EQ(own.offload.how.path, "/d");
  EXPECT_EQ(own.offload.how.ratio, 0.5);
  EXPECT_EQ(own.offload.how.threads, 4);
  EXPECT_EQ(own, theirs);
  EXPECT_EQ(parse(R"({"zero_optimization": {"cpu_offload": true}})").offload.optimizer, TierChoice::Host);
  EXPECT_EQ(parse(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})").offload.optimizer,
            TierChoice::Host);
  for (const char* none : {"null", R"({"device": "none"})", R"({"device": null})", "{}"})
    EXPECT_EQ(parse(std::string(R"({"zero_optimization": {"offload_optimizer": )") + none + "}}").offload,
              OffloadConfig{})
        << none;
}

TEST(Config, Recomputation) {
  const auto policy = [](const std::string& text) {
    return parse("{\"activation_checkpointing\": {" + text + "}}").recompute;
  };
  EXPECT_EQ(policy(""), RecomputePolicy{});
  EXPECT_EQ(policy("\"recompute\": \"all\", \"cpu_checkpointing\": true"),
            (RecomputePolicy{.every = 1, .inputs_on_host = true}));
  EXPECT_EQ(policy("\"recompute\": 3").every, 3);
  EXPECT_EQ(policy("\"recompute\": \"auto\", \"memory\": \"2MiB\""),
            (RecomputePolicy{.every = kRecomputeAuto, .memory_bytes = 2 << 20}));
  EXPECT_EQ(
      policy("\"offload\": \"disk\", \"offload_path\": \"/scratch\", \"offload_buffer_size\": \"1MiB\""),
      (RecomputePolicy{.tier = ActivationTier::Disk, .path = "/scratch", .buffer_bytes = 1 << 20}));
  EXPECT_EQ(policy("\"recompute\": \"auto\", \"offload\": \"auto\"").memory_bytes, -1);
}

// What DeepSpeed's other keys ask for is so anyway, or says nothing about which blocks: a note each, unless
// unset.
TEST(Config, RecomputationKeysWithoutEffectAreNoted) {
  const std::string keys =
      R"("recompute": "all", "contiguous_memory_optimization": true, "number_checkpoints": 4,
      "synchronize_checkpoint_boundary": true, "profile": true)";
  const Config c = parse("{\"activation_checkpointing\": {" + keys + "}}");
  EXPECT_EQ(c.recompute, (RecomputePolicy{.every = 1})) << "number_checkpoints is a buffer's length";
  ASSERT_EQ(c.origin.notes.size(), 4u);
  size_t at = 0;
  for (const char* key : {"contiguous_memory_optimization", "number_checkpoints",
                          "synchronize_checkpoint_boundary", "profile"}) {
    const std::string place = std::string("activation_checkpointing.") + key + " has no effect here: ";
    EXPECT_NE(c.origin.notes[at].find(place), std::string::npos) << c.origin.notes[at];
    ++at;
  }
}

// Parts of inputs need ranks that share a layer: where there are none, or each has its part, a note says so.
TEST(Config, PartitionedActivations) {
  const auto notes = [](const std::string& parallel) {
    const Config c = resolve(parse(R"({"train_batch_size": 8, "parallel": {)" + parallel + R"(},
      "activation_checkpointing": {"recompute": "all", "partition_activations": true}})"),
                             4);
    EXPECT_TRUE(c.recompute.partition_inputs);
    EXPECT_EQ(resolve(c, 4).origin.notes, c.origin.notes) << "said once";
    return c.origin.notes;
  };
  EXPECT_TRUE(notes("\"tensor\": 2").empty());
  ASSERT_EQ(notes("").size(), 1u);
  EXPECT_EQ(
      notes("")[0],
      "f:2: activation_checkpointing.partition_activations has no effect here: parallel.tensor is 1, so "
      "no other rank has a block's input");
  ASSERT_EQ(notes("\"tensor\": 2, \"sequence\": true").size(), 1u);
  EXPECT_NE(notes("\"tensor\": 2, \"sequence\": true")[0].find("parallel.sequence has cut"),
            std::string::npos);
}

TEST(Config, ExampleFilesAreValid) {
  for (const char* name : {"gpt2-demo.json", "gpt2-zero3.json", "llama-70b.json"}) {
    const Config c = load_config(std::string(ZERO_TEST_DATA) + "/../configs/" + name);
    for (int ranks : {1, 2, 4}) EXPECT_EQ(resolve(c, ranks).zero.stage, 3) << name;
    EXPECT_TRUE(c.origin.notes.empty());
  }
}

TEST(Config, PrintingIsStable) {
  const std::string text = to_json(Config{});
  EXPECT_EQ(text.find("{\n  \"train_batch_size\": null,\n  \"train_micro_batch_size_per_gpu\": null,"), 0u);
  EXPECT_EQ(to_json(parse(text)), text);
  Config broken;
  broken.data.train = "\xff";
  EXPECT_THROW(to_json(broken), Error);
}

TEST(ConfigKeys, AreUniqueAndComplete) {
  std::set<std::string> paths;
  for (const ConfigKey& key : config_keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " twice";
    for (const std::string& alias : key.aliases) {
      EXPECT_TRUE(paths.insert(key.path.substr(0, key.path.rfind('.') + 1) + alias).second)
          << alias << " twice";
    }
    EXPECT_FALSE(key.type.empty()) << key.path;
    EXPECT_TRUE(key.support != ConfigKey::Support::Bound || !key.doc.empty()) << key.path;
  }
  for (const char* known :
       {"zero_optimization.stage", "optimizer.params.lr", "scheduler.params.cycle_max_lr",
        "parameter_groups[].pattern", "model.size", "run.steps", "fp16.enabled", "residency.budget"}) {
    EXPECT_TRUE(paths.contains(known)) << known;
  }
  EXPECT_GT(paths.size(), 150u);
}

// What the description calls the default is accepted, silently, and changes nothing.
TEST(ConfigKeys, DefaultsAreAccepted) {
  int tried = 0;
  for (const ConfigKey& key : config_keys()) {
    const bool of_another_model = key.doc.ends_with("llama)") || key.doc.ends_with("gpt_neox)");
    const bool depends_on_type = key.path.find(".params.") != std::string::npos ||
                                 key.path.starts_with("model.rope_scaling") || of_another_model;
    const bool is_on_by_presence = key.path.starts_with("comms_logger.");  // as in DeepSpeed
    if (key.default_value.empty() || key.path.find("[]") != std::string::npos || depends_on_type ||
        is_on_by_presence)
      continue;
    const Config c = parse("{}", {key.path + "=" + key.default_value});
    EXPECT_EQ(c, Config{}) << key.path;
    EXPECT_TRUE(c.origin.notes.empty()) << key.path;
    tried++;
  }
  EXPECT_GT(tried, 120);
}

TEST(ConfigKeys, TheDocumentHoldsTheTables) {
  const std::string document = read_repository_file("docs/configuration.md");
  const std::string table = config_reference();
  if (document.find(table) != std::string::npos) return;
  const std::string path = testing::TempDir() + "configuration_table.md";
  std::ofstream(path) << table;
  FAIL() << "docs/configuration.md has drifted from the key tables; the table now is in " << path;
}

}  // namespace
}  // namespace zero

// Settings of DeepSpeed, accelerate and the Trainer as configurations of this program.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "convert/convert.h"
#include "support/expect_error.h"
#include "zero/config.h"
#include "zero/error.h"

namespace zero::convert {
namespace {

bool has_line(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const auto& line) { return line.find(part) != std::string::npos; });
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// What the loader makes of it; the test fails where something is refused.
Config loaded(const Converted& converted) {
  EXPECT_EQ(joined(converted.refused), "");
  return parse_config(converted.config.dump(), "converted");
}

TEST(Yaml, ValuesHaveTheirTypes) {
  const Json json = json_of_yaml(
      "a: 1\nb: 2.5e-1\nc: true\nd: 'true'\ne: no\nf:\ng: [1, x]\nh: {i: ~}\n# a comment\nj: 0x\n", "f");
  EXPECT_EQ(json.dump(),
            R"({"a":1,"b":0.25,"c":true,"d":"true","e":"no","f":null,"g":[1,"x"],"h":{"i":null},"j":"0x"})");
}

TEST(Yaml, WhatIsNoneIsRefused) {
  EXPECT_ERROR(json_of_yaml("a: [1", "f.yaml"), Corrupt, "f.yaml:");
  EXPECT_ERROR(json_of_yaml("a: 1\na: 2", "f"), Corrupt, "\"a\" is given twice");
  EXPECT_ERROR(json_of_yaml("a: &x [1]\nb: [*x, *x]", "f"), Corrupt, "anchors and aliases");
  EXPECT_ERROR(json_of_yaml(std::string(100, '[') + std::string(100, ']'), "f"), Corrupt, "64 deep");
  EXPECT_NO_THROW(json_of_yaml("pattern: '*.bias'\nand: a & b", "f"));
}

constexpr const char* kAutoFile = R"({
  "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": 0},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                    "warmup_num_steps": "auto"}},
  "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true, "reduce_bucket_size": "auto",
                        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
                        "stage3_gather_16bit_weights_on_model_save": true},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto"})";

TEST(ConvertConfig, TheTrainerFillsInAutoValues) {
  const Config config = loaded(
      convert({.deepspeed = Json::parse(kAutoFile),
               .accelerate = {},
               .trainer = Json::parse(R"({"learning_rate": 3e-5, "adam_beta2": 0.95, "weight_decay": 0.1,
      "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "max_steps": 200, "warmup_ratio": 0.1,
      "bf16": true, "fp16": false, "seed": 5, "logging_steps": 7, "save_steps": 50, "output_dir": "runs/x",
      "gradient_checkpointing": true})")}));
  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_TRUE(config.precision.bf16);
  EXPECT_EQ(config.train_micro_batch_size, 4);
  EXPECT_EQ(config.gradient_accumulation_steps, 2);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  const Json optimizer = Json::parse(to_json(config)).at("optimizer").at("params");
  EXPECT_EQ(optimizer.at("lr"), 3e-5);
  EXPECT_EQ(optimizer.at("betas"), Json::array({0.9, 0.95}));
  EXPECT_EQ(optimizer.at("weight_decay"), 0.1);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 20);
  EXPECT_EQ(config.run.steps, 200);
  EXPECT_EQ(config.run.seed, 5);
  EXPECT_EQ(config.run.directory, "runs/x");
  EXPECT_EQ(config.checkpoint.interval_steps, 50);
  EXPECT_EQ(config.logging.print_interval_steps, 7);
  EXPECT_EQ(config.recompute.every, 1);
}

TEST(ConvertConfig, AutoValuesThatNobodyFillsAreDefaultsAndNoted) {
  const Converted converted = convert({.deepspeed = Json::parse(kAutoFile), .accelerate = {}, .trainer = {}});
  const Config config = loaded(converted);
  EXPECT_TRUE(has_line(converted.notes, "optimizer.params.lr: \"auto\" is left to the default"));
  EXPECT_EQ(converted.config.dump().find("auto"), std::string::npos);
  EXPECT_EQ(config.zero.stage, 3);
}

TEST(ConvertConfig, AcceleratesDeepSpeedSection) {
  const Json accelerate = json_of_yaml(R"(compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 2
distributed_type: DEEPSPEED
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
)",
                                       "f");
  const Config config = loaded(convert({.deepspeed = {}, .accelerate = accelerate, .trainer = {}}));
  EXPECT_EQ(config.zero.stage, 2);
  EXPECT_TRUE(config.precision.bf16);
  EXPECT_EQ(config.gradient_accumulation_steps, 4);
  EXPECT_EQ(config.parallel.ranks, 2);
}

TEST(ConvertConfig, AcceleratesFsdpSection) {
  for (const auto& [text, stage] :
       std::map<std::string, int>{{"fsdp_sharding_strategy: FULL_SHARD", 3},
                                  {"fsdp_sharding_strategy: SHARD_GRAD_OP", 2},
                                  {"fsdp_reshard_after_forward: true\n  fsdp_version: 2", 3},
                                  {"fsdp_reshard_after_forward: false\n  fsdp_version: 2", 2}}) {
    const Json accelerate = json_of_yaml(
        "distributed_type: FSDP\nfsdp_config:\n  " + text +
            "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_activation_checkpointing: true\n",
        "f");
    const Config config = loaded(convert({.deepspeed = {}, .accelerate = accelerate, .trainer = {}}));
    EXPECT_EQ(config.zero.stage, stage) << text;
    EXPECT_EQ(config.recompute.every, 1);
  }
}

Config from_accelerate(const std::string& text) {
  return loaded(convert({.deepspeed = {}, .accelerate = json_of_yaml(text, "f"), .trainer = {}}));
}

TEST(ConvertConfig, AcceleratesHybridShardingIsOverTheRanksOfAMachine) {
  const auto of = [](const std::string& strategy, const std::string& where) {
    return from_accelerate("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: " + strategy +
                           "}\n" + where);
  };
  const Config hybrid = of("HYBRID_SHARD", "num_machines: 4\nnum_processes: 32\n");
  EXPECT_EQ(hybrid.zero.stage, 3);
  EXPECT_EQ(hybrid.parallel.shard_group_ranks, 8);
  EXPECT_EQ(of("5", "num_machines: 2\nnum_processes: 4\n").zero.stage, 2);
  EXPECT_EQ(of("4", "num_machines: 1\nnum_processes: 8\n").parallel.shard_group_ranks, 0) << "all ranks";
  const Converted odd = convert({.deepspeed = {},
                                 .accelerate = json_of_yaml("num_machines: 3\nnum_processes: 8\nfsdp_config: "
                                                            "{fsdp_sharding_strategy: HYBRID_SHARD}\n",
                                                            "f"),
                                 .trainer = {}});
  EXPECT_TRUE(has_line(odd.refused, "do not say how many ranks a machine has"));
}

// As `accelerate config` and hands write them.
TEST(ConvertConfig, FilesOfAccelerateAsPeopleHaveThem) {
  const Config data_parallel = from_accelerate(
      "distributed_type: MULTI_GPU\ndowncast_bf16: no\ngpu_ids: 0,1\nmixed_precision: fp16\nnum_machines: 1\n"
      "num_processes: 2  # cards\nmain_process_ip: null\ntpu_env: []\ntpu_use_cluster: false\nuse_cpu: "
      "false\n");
  EXPECT_EQ(data_parallel.zero.stage, 0);
  EXPECT_TRUE(data_parallel.precision.fp16);
  const Config numbered = from_accelerate(
      "distributed_type: FSDP\ndeepspeed_config: {}\nmixed_precision: \"no\"\nfsdp_config:\n"
      "  fsdp_sharding_strategy: 1\n  fsdp_backward_prefetch_policy: BACKWARD_PRE\n"
      "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n  fsdp_state_dict_type: FULL_STATE_DICT\n");
  EXPECT_EQ(numbered.zero.stage, 3);
  EXPECT_FALSE(numbered.precision.bf16);
  const Config unfilled = from_accelerate(
      "distributed_type: DEEPSPEED\nfsdp_config: {}\ndeepspeed_config:\n  gradient_accumulation_steps: auto\n"
      "  gradient_clipping: auto\n  deepspeed_multinode_launcher: standard\n  zero_stage: 2\n"
      "  offload_param_device: none\n  zero3_init_flag: false\n");
  EXPECT_EQ(unfilled.zero.stage, 2);
  EXPECT_EQ(unfilled.gradient_clipping, Config().gradient_clipping);
  const Config second = from_accelerate(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_sharding_strategy: FULL_SHARD\n"
      "  fsdp_reshard_after_forward: true\n  fsdp_offload_params: true\n  fsdp_limit_all_gathers: true\n"
      "parallelism_config:\n  parallelism_config_dp_replicate_size: 1\n  parallelism_config_tp_size: 2\n"
      "  parallelism_config_cp_size: 1\nnum_processes: 4\n");
  EXPECT_EQ(second.parallel.tensor, 2);
  EXPECT_EQ(second.offload.parameter, TierChoice::Host);
  const Converted refused = convert(
      {.deepspeed = {},
       .accelerate = json_of_yaml("parallelism_config: {parallelism_config_cp_size: 2}\ndeepspeed_config: "
                                  "{gradient_clip: 1.0}\nmegatron_lm_config: {megatron_lm_tp_degree: 2}\n",
                                  "f"),
       .trainer = {}});
  EXPECT_EQ(refused.refused.size(), 3u) << joined(refused.refused);
}

TEST(ConvertConfig, WhatCannotBeTakenOverIsInOneListWithWhatToWrite) {
  const Converted converted = convert(
      {.deepspeed = Json::parse(R"({"gradient_clipping": 1.0, "zero_optimization": {"stage": 3}})"),
       .accelerate =
           json_of_yaml("mixed_precision: fp8\nnonsense: 1\ndynamo_config: {dynamo_backend: INDUCTOR}\n"
                        "deepspeed_config: {zero_stage: 2}\nfsdp_config: {fsdp_sharding_strategy: "
                        "HYBRID_SHARD, fsdp_shard_size: 4}\n",
                        "f"),
       .trainer = Json::parse(
           R"({"optim": "galore_adamw", "max_grad_norm": 0.1, "lr_scheduler_type": "reduce_lr_on_plateau"})")});
  EXPECT_EQ(converted.refused.size(), 9u) << joined(converted.refused);
  for (const char* part :
       {"mixed_precision \"fp8\": expected no, bf16 or fp16", "nonsense: no such key", "dynamo_config",
        "fsdp_shard_size 4: write parallel.shard_group", "HYBRID_SHARD: num_processes and num_machines",
        "says zero_optimization.stage is 2, the DeepSpeed file 3", "optim \"galore_adamw\"",
        "says gradient_clipping is 0.1", "lr_scheduler_type \"reduce_lr_on_plateau\""})
    EXPECT_TRUE(has_line(converted.refused, part)) << part << " in\n" << joined(converted.refused);
}

TEST(ConvertConfig, OptimizersAndSchedulesOfTheTrainerWithoutADeepSpeedFile) {
  const Converted converted =
      convert({.deepspeed = {},
               .accelerate = {},
               .trainer = Json::parse(R"({"optim": "adamw_bnb_8bit", "learning_rate": 1e-4, "max_steps": 10,
      "lr_scheduler_type": "cosine", "warmup_steps": 3, "fp16": true, "eval_strategy": "steps", "eval_steps": 5})")});
  const Config config = loaded(converted);
  const Json json = Json::parse(to_json(config));
  EXPECT_EQ(json.at("optimizer").at("params").at("states_8bit"), true);
  EXPECT_EQ(json.at("scheduler").at("type"), "Cosine");
  EXPECT_EQ(json.at("scheduler").at("params").at("warmup_steps"), 3);
  EXPECT_EQ(json.at("fp16").at("enabled"), true);
  EXPECT_TRUE(has_line(converted.notes, "eval_steps: write run.eval_interval_steps"));
}

// transformers' Trainer makes Adafactor with scale_parameter=False and relative_step=False, whose own
// defaults are True.
TEST(ConvertConfig, AdafactorOfTheTrainerHasTheRateThatIsGiven) {
  for (const char* text : {R"({"optim": "adafactor", "learning_rate": 1e-4, "weight_decay": 0.1})",
                           R"({"adafactor": true, "learning_rate": 1e-4, "weight_decay": 0.1})"}) {
    const Config config = loaded(convert({.deepspeed = {}, .accelerate = {}, .trainer = Json::parse(text)}));
    const Json optimizer = Json::parse(to_json(config)).at("optimizer");
    EXPECT_EQ(optimizer.at("type"), "Adafactor") << text;
    const Json& params = optimizer.at("params");
    EXPECT_EQ(params.at("scale_parameter"), false) << text;
    EXPECT_EQ(params.at("relative_step"), false) << text;
    EXPECT_EQ(params.at("lr"), 1e-4) << text;
    EXPECT_EQ(params.at("weight_decay"), 0.1) << text;
  }
}

// Command lines and PyYAML make words of numbers and truths, and to_json_string() writes nulls.
TEST(ConvertConfig, ArgumentsOfTheTrainerAsWords) {
  const Converted converted = convert(
      {.deepspeed = {},
       .accelerate = {},
       .trainer = Json::parse(
           R"({"learning_rate": "2e-5", "max_steps": "100", "optim": "paged_adamw_32bit", "bf16": "True",
               "gradient_checkpointing": "true", "save_strategy": false, "save_steps": 50, "adafactor": null,
               "lr_scheduler_type": null, "seed": "42", "weight_decay": null})")});
  const Json json = Json::parse(to_json(loaded(converted)));
  EXPECT_EQ(json.at("optimizer").at("params").at("lr"), 2e-5);
  EXPECT_EQ(json.at("run").at("steps"), 100);
  EXPECT_EQ(json.at("run").at("seed"), 42);
  EXPECT_EQ(json.at("bf16").at("enabled"), true);
  EXPECT_EQ(json.at("activation_checkpointing").at("recompute"), "all");
  EXPECT_EQ(converted.config.value("checkpoint", Json()), Json());
  EXPECT_TRUE(has_line(converted.notes, "paged_adamw_32bit"));
  const Converted wrong =
      convert({.deepspeed = {}, .accelerate = {}, .trainer = Json::parse(R"({"learning_rate": "fast"})")});
  EXPECT_TRUE(has_line(wrong.refused, "learning_rate \"fast\": expected a number")) << joined(wrong.refused);
}

TEST(ConvertConfig, TheTrainersOwnFsdpAndDeepSpeedArguments) {
  const Converted fsdp = convert(
      {.deepspeed = {}, .accelerate = {}, .trainer = Json::parse(R"({"fsdp": "full_shard offload auto_wrap",
                   "fsdp_config": {"activation_checkpointing": true}})")});
  const Json json = Json::parse(to_json(loaded(fsdp)));
  EXPECT_EQ(json.at("zero_optimization").at("stage"), 3);
  EXPECT_EQ(fsdp.config.at("zero_optimization").at("offload_param").at("device"), "cpu");
  EXPECT_EQ(json.at("activation_checkpointing").at("recompute"), "all");
  const Converted hybrid =
      convert({.deepspeed = {}, .accelerate = {}, .trainer = Json::parse(R"({"fsdp": ["hybrid_shard"]})")});
  EXPECT_TRUE(has_line(hybrid.refused, "parallel.shard_group")) << joined(hybrid.refused);
  const Converted inside =
      convert({.deepspeed = {},
               .accelerate = {},
               .trainer = Json::parse(R"({"per_device_train_batch_size": 3, "deepspeed": {
           "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}})")});
  EXPECT_EQ(Json::parse(to_json(loaded(inside))).at("zero_optimization").at("stage"), 2);
  EXPECT_EQ(inside.config.at("train_micro_batch_size_per_gpu"), 3);
  const Converted file =
      convert({.deepspeed = {}, .accelerate = {}, .trainer = Json::parse(R"({"deepspeed": "ds.json"})")});
  EXPECT_TRUE(has_line(file.notes, "deepspeed: give the file itself as the first argument"));
}

}  // namespace
}  // namespace zero::convert

// Files as users of DeepSpeed have them: their keys and values, typed anew. 13 of the 15 run, some once a
// batch size that another program would fill in is given; two ask for methods that change results.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "zero/config.h"
#include "zero/error.h"

namespace zero {
namespace {

const std::vector<std::string> kThatRun = {
    // Trainer, stage 2.
    R"({"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
        "hysteresis": 2, "min_loss_scale": 1}, "optimizer": {"type": "AdamW", "params": {"lr": "auto",
        "betas": "auto", "eps": "auto", "weight_decay": "auto"}}, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}, "zero_optimization":
        {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "allgather_partitions": true,
        "allgather_bucket_size": 2e8, "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8,
        "contiguous_gradients": true}, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})",
    // Trainer, stage 3 with 16-bit weights at saving, and the profiler.
    R"({"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "overlap_comm": true,
        "contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": true}, "train_batch_size": "auto", "steps_per_print": 2000,
        "wall_clock_breakdown": false, "flops_profiler": {"enabled": true, "profile_step": 1, "module_depth": -1,
        "top_modules": 1, "detailed": true, "output_file": null}})",
    // Megatron's, with the profiler alone.
    R"({"gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1},
        "fp16": {"enabled": true}, "steps_per_print": 2000, "wall_clock_breakdown": false, "flops_profiler":
        {"enabled": true, "profile_step": 3, "top_modules": 1, "output_file": "profile.out"}})",
    // Reinforcement learning's, with hpZ.
    R"({"steps_per_print": 100, "zero_optimization": {"stage": 3, "offload_param": {"device": "none"},
        "offload_optimizer": {"device": "none", "pin_memory": true}, "sub_group_size": "auto",
        "stage3_max_live_parameters": "auto", "reduce_bucket_size": "auto", "zero_hpz_partition_size": 8,
        "zero_quantized_weights": false, "zero_quantized_gradients": false}, "bf16": {"enabled": true},
        "gradient_clipping": 1.0, "prescale_gradients": false, "data_types": {"grad_accum_dtype": null},
        "wall_clock_breakdown": false})",
    // hpZ and W&B.
    R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4},
        "bf16": {"enabled": true}, "wandb": {"enabled": true, "team": "t", "group": "g", "project": "p"}})",
    // Numbers in quotes.
    R"({"train_batch_size": "16", "optimizer": {"type": "Adam", "params": {"lr": "3e-5", "weight_decay": "0.01"}},
        "zero_optimization": {"stage": "1"}})",
    // A chat model's, with sections that are off.
    R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10, "zero_optimization":
        {"stage": 2, "offload_param": {"device": "none"}, "offload_optimizer": {"device": "none"},
        "memory_efficient_linear": false}, "fp16": {"enabled": true, "loss_scale_window": 100},
        "gradient_clipping": 1.0, "prescale_gradients": false, "hybrid_engine": {"enabled": false,
        "max_out_tokens": 512, "inference_tp_size": 1}, "tensorboard": {"enabled": true, "output_path": "logs/",
        "job_name": "chat"}})",
    // Everything on disks.
    R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "offload_optimizer": {"device":
        "nvme", "nvme_path": "/local", "pin_memory": true, "buffer_count": 4}, "offload_param": {"device": "nvme",
        "nvme_path": "/local", "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9}}, "aio": {"block_size":
        262144, "queue_depth": 32, "thread_count": 1, "single_submit": false, "overlap_events": true}})",
    // Pre-training with a decaying schedule.
    R"({"train_batch_size": 256, "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps":
        1e-8, "weight_decay": 0.1}}, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000,
        "warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 100}}, "zero_optimization": {"stage": 1},
        "bf16": {"enabled": true}, "communication_data_type": "fp32", "memory_breakdown": true})",
    // Recomputation's keys and the log of collectives.
    R"({"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2, "round_robin_gradients": false},
        "activation_checkpointing": {"partition_activations": false, "contiguous_memory_optimization": false,
        "cpu_checkpointing": false, "number_checkpoints": null, "synchronize_checkpoint_boundary": false,
        "profile": false}, "comms_logger": {"enabled": true, "verbose": false, "prof_all": true, "debug": false}})",
    // Shards inside groups.
    R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3, "mics_shard_size": 2,
        "mics_hierarchical_params_gather": false}, "bf16": {"enabled": true}, "dump_state": true})",
    // An untested optimizer and data parallelism alone.
    R"({"train_batch_size": 8, "zero_allow_untested_optimizer": true, "gradient_predivide_factor": 1.0,
        "zero_optimization": {"stage": 0}, "fp16": {"enabled": false}, "csv_monitor": {"enabled": true,
        "output_path": "csv", "job_name": "a"}})",
    // LAMB.
    R"({"train_batch_size": 64, "optimizer": {"type": "Lamb", "params": {"lr": 6e-3, "max_coeff": 0.3, "min_coeff":
        0.01}}, "gradient_clipping": 1.0, "prescale_gradients": false, "fp16": {"enabled": true}})"};

const std::vector<std::string> kThatAskForOtherMethods = {
    R"({"train_batch_size": 64, "optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "freeze_step": 23000}},
        "fp16": {"enabled": true}})",
    R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "zero_quantized_weights": true,
        "zero_hpz_partition_size": 16, "zero_quantized_gradients": true}})"};

TEST(DeepSpeedFiles, ThirteenOfFifteenRun) {
  ASSERT_EQ(kThatRun.size(), 13u);
  const std::vector<std::string> batch = {"train_micro_batch_size_per_gpu=1"};
  for (const std::string& text : kThatRun) {
    const bool has_batch = text.find("batch_size") != std::string::npos &&
                           text.find("batch_size\": \"auto\"") == std::string::npos;
    const Config run = resolve(
        parse_config(text, "f",
                     has_batch ? std::span<const std::string>() : std::span<const std::string>(batch)),
        4);
    EXPECT_GT(run.train_batch_size, 0) << text;
    EXPECT_EQ(parse_config(to_json(run)), run) << text;
  }
}

std::string refusal_of(const std::string& text) {
  try {
    parse_config(text, "f");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DeepSpeedFiles, TheOthersAreRefusedByName) {
  EXPECT_NE(refusal_of(kThatAskForOtherMethods[0]).find("OneBitAdam"), std::string::npos);
  const std::string quantized = refusal_of(kThatAskForOtherMethods[1]);
  EXPECT_NE(quantized.find("zero_quantized_weights"), std::string::npos) << quantized;
  EXPECT_NE(quantized.find("zero_quantized_gradients"), std::string::npos) << "in one list";
  EXPECT_EQ(quantized.find("zero_hpz_partition_size"), std::string::npos);
}

}  // namespace
}  // namespace zero

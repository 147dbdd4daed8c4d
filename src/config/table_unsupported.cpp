// What DeepSpeed's file may hold and this version does not do: known by name, accepted when off.

#include "config/rows.h"

// See table_own.cpp.
#define ZERO_AT(path) (+[](Config & config) -> auto& { return config.path; })

namespace zero::config {

namespace {

Row off_unless_enabled(std::string name, std::vector<std::string> others, std::string doc,
                       std::string instead = {}) {
  return off(OffSection{.name = std::move(name),
                        .switch_key = "enabled",
                        .accepted = {false},
                        .others = std::move(others),
                        .doc = std::move(doc),
                        .instead = std::move(instead)});
}

Row pipeline_row() {
  return section<Config>(
      "pipeline",
      {shorthand("stages", ZERO_AT(parallel.pipeline), null_as(1, count(1)), "parallel.pipeline",
                 "DeepSpeed's ranks along a pipeline (parallel.pipeline)"),
       shorthand("partition", ZERO_AT(parallel.balance),
                 choice<ParallelConfig::Balance>({{"best", ParallelConfig::Balance::Cost},
                                                  {"parameters", ParallelConfig::Balance::Parameters},
                                                  {"uniform", ParallelConfig::Balance::Uniform}}),
                 "parallel.balance", "best: cost (parallel.balance)"),
       off("seed_layers", {false}, ""), off("activation_checkpoint_interval", {0}, ""),
       off("pipe_partitioned", {true}, ""), off("grad_partitioned", {true}, "")});
}

Rows precision_rows() {
  return {off_unless_enabled("amp", {"*"}, "no Apex", "bf16 or fp16 with enabled: true"),
          hint<Dtype>("seq_parallel_communication_data_type", training_dtype(), Dtype::f32,
                      "no sequence parallelism"),
          off("sparse_gradients", {false}, "gradients are dense")};
}

Rows parallelism_rows() {
  return {off_unless_enabled("elasticity",
                             {"max_train_batch_size", "micro_batch_sizes", "min_gpus", "max_gpus",
                              "num_gpus_per_node", "model_parallel_size", "min_time", "prefer_larger_batch",
                              "ignore_non_elastic_batch_info", "version"},
                             "the number of ranks is fixed for a run"),
          pipeline_row(),
          off("sequence_parallel_size", {1}, "no sequence parallelism"),
          off_unless_enabled("expert_parallel", {"*"}, "no expert parallelism"),
          off("use_data_before_expert_parallelism", {false}, "no expert parallelism"),
          off_unless_enabled("hybrid_engine", {"*"}, "one engine trains and evaluates")};
}

Rows method_rows() {
  return {off_unless_enabled("autotuning", {"*"}, "`zero plan` shows what a setting costs"),
          off("compression_training", {nullptr, Json::object()}, "no compression"),
          off_unless_enabled("weight_quantization", {"*"}, "no quantization"),
          off_unless_enabled("eigenvalue", {"*"}, ""),
          off_unless_enabled("progressive_layer_drop", {"*"}, ""),
          off("sparse_attention", {nullptr, Json::object()}, "attention is dense"),
          off_unless_enabled("curriculum_learning", {"*"}, "samples come in one order"),
          off_unless_enabled("data_efficiency", {"*"}, "samples come in one order"),
          hint("dataloader_drop_last", boolean(), false, "every batch is full"),
          off_unless_enabled("nebula", {"*"}, "DeepSpeed's checkpoint services"),
          off("datastates_ckpt", {nullptr, Json::object()}, "DeepSpeed's checkpoint services"),
          off(OffSection{"compile", "deepcompile", {false}, {"*"}, "no compiler"}),
          off("graph_harvesting", {false}, "no CUDA graphs"),
          off_unless_enabled("timers", {"*"}, ""),
          hint<int64_t>("vocabulary_size", integer(0), 0, "see model.vocab_size"),
          off("disable_allgather", {false}, ""),
          hint("zero_allow_untested_optimizer", boolean(), false, "every optimizer is allowed"),
          hint("zero_force_ds_cpu_optimizer", boolean(), true, "there is one Adam")};
}

}  // namespace

Rows unsupported_rows() {
  Rows rows;
  for (Rows part : {precision_rows(), parallelism_rows(), method_rows()}) {
    for (Row& row : part) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace zero::config

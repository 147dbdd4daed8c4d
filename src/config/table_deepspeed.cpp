// DeepSpeed's keys that this version does: batch sizes, precision, zero_optimization.
// Defaults and meanings: DeepSpeed's configuration at version 0.19; a default that differs says so.

#include "config/rows.h"
#include "zero/placement.h"

// Finds one field in the configuration, as a plain function.
#define ZERO_AT(path) (+[](Config & config) -> auto& { return config.path; })

namespace zero::config {

namespace {

Row data_types_row() {
  return section<Config>(
      "data_types",
      {field("grad_accum_dtype", ZERO_AT(precision.grad_accum_dtype), nullable(training_dtype()),
             "type of accumulated gradients; null: fp32"),
       field("param_dtype", ZERO_AT(precision.param_dtype), nullable(training_dtype()),
             "type of parameters; null: what bf16.enabled and fp16.enabled say, and it must agree with them"),
       field("buffer_dtype", ZERO_AT(precision.buffer_dtype), nullable(training_dtype()),
             "type of floating-point buffers; null: as the model makes them")});
}

Row bf16_row() {
  const std::vector<Json> no{false};
  return also(
      section<Config>(
          "bf16",
          {field("enabled", ZERO_AT(precision.bf16), boolean(), "bf16 parameters with an fp32 master copy"),
           off("immediate_grad_update", no, "gradients are accumulated in fp32"),
           off("check_grad_overflow", {true}, "bf16 has the range of fp32"),
           shorthand("bf16_master_weights_and_grads", ZERO_AT(precision.stochastic_rounding), boolean(),
                     "precision.stochastic_rounding",
                     "no master; updates are rounded stochastically, gradients' sums are "
                     "data_types.grad_accum_dtype (precision.stochastic_rounding)"),
           off("bf16_optimizer_states", no, "optimizer states are fp32")},
          true),
      {"bfloat16"});
}

// Which operators cast is LibTorch's list. A module's class is nothing that operators know.
Row torch_autocast_row() {
  const std::vector<Json> safe_modules{
      nullptr, Json::array({"torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d"})};
  return section<Config>(
      "torch_autocast",
      {field("enabled", ZERO_AT(precision.autocast), boolean(),
             "fp32 parameters; LibTorch's autocast decides by operator what computes in dtype"),
       field(
           "dtype", ZERO_AT(precision.autocast_dtype),
           choice<Dtype>({{"bfloat16", Dtype::bf16}, {"bf16", Dtype::bf16}, {"torch.bfloat16", Dtype::bf16}},
                         {"float16", "fp16", "torch.float16"}),
           "of those operators"),
       off("lower_precision_safe_modules", safe_modules,
           "operators are chosen by kind, not by the class of the module that calls them")},
      true);
}

Row fp16_row() {
  using Rule = LossScaling::Rule;
  using AtMinimum = LossScaling::AtMinimum;
  return section<Config>(
      "fp16",
      {field("enabled", ZERO_AT(precision.fp16), boolean(),
             "fp16 parameters with an fp32 master copy; losses are scaled"),
       hint("auto_cast", boolean(), false, "what goes into a model are tokens"),
       field("loss_scale", ZERO_AT(precision.loss_scaling.fixed_scale), number_at_least(0),
             "the scale of losses for good; 0: dynamic"),
       field("initial_scale_power", ZERO_AT(precision.loss_scaling.initial_scale_power), count(0, 120),
             "a dynamic scale begins with 2 to it"),
       field("loss_scale_window", ZERO_AT(precision.loss_scaling.window), nullable(integer(1)),
             "steps without an overflow before the scale doubles; null: 1000, GradScaler 2000"),
       field("hysteresis", ZERO_AT(precision.loss_scaling.hysteresis), count(1),
             "overflows before the scale halves"),
       field("consecutive_hysteresis", ZERO_AT(precision.loss_scaling.consecutive_hysteresis), boolean(),
             "a step without an overflow refills hysteresis; false: only where the scale doubles"),
       field("min_loss_scale", ZERO_AT(precision.loss_scaling.min_scale), nullable(number_at_least(0)),
             "the least scale; null: 1, GradScaler 0"),
       field("rule", ZERO_AT(precision.loss_scaling.rule),
             choice<Rule>({{"DeepSpeed", Rule::DeepSpeed}, {"GradScaler", Rule::GradScaler}}),
             "how a dynamic scale moves: as DeepSpeed's, or torch.amp's"),
       field("at_minimum", ZERO_AT(precision.loss_scaling.at_minimum),
             choice<AtMinimum>(
                 {{"stop", AtMinimum::Stop}, {"skip", AtMinimum::Skip}, {"continue", AtMinimum::Continue}}),
             "an overflow at the least scale: an error, a skipped step, or a scale below it"),
       off("fp16_master_weights_and_grads", {false}, "the master copy is fp32")},
      true);
}

Rows bucket_rows() {
  const Format<int64_t> elements = integer(1);
  return {
      hint("contiguous_gradients", boolean(), true, "gradients are always packed into one buffer a unit"),
      off("reduce_scatter", {true}, "sharded gradients are reduce-scattered"),
      field("reduce_bucket_size", ZERO_AT(zero.reduce_bucket_numel), elements,
            "elements reduced at once (DeepSpeed: 5e8)"),
      off("allgather_partitions", {true}, "parameters are all-gathered"),
      hint("allgather_bucket_size", elements, int64_t{500000000}, "a unit is gathered at once"),
      field(
          "overlap_comm", ZERO_AT(zero.overlap_comm), nullable(boolean()),
          "reduce gradients and gather parameters while computing; null: true (DeepSpeed: at stage 3 only)"),
      also(field("stage3_prefetch_bucket_size", ZERO_AT(zero.prefetch_numel), nullable(integer(0)),
                 "elements fetched ahead; null: residency.prefetch alone decides (DeepSpeed: 5e7)"),
           {"prefetch_bucket_size"}),
      also(field("stage3_max_live_parameters", ZERO_AT(zero.max_live_numel), nullable(integer(0)),
                 "elements resident at most; null: residency.budget alone decides (DeepSpeed: 1e9)"),
           {"max_live_parameters"}),
  };
}

Rows zero_hint_rows() {
  const Format<int64_t> elements = integer(0);
  return {
      field("sub_group_size", ZERO_AT(zero.sub_group_numel), nullable(integer(1)),
            "elements of a piece of the step, of a unit at most, rounded up to 256, with parameters or "
            "gradients on disk to 2048: with states on disk what "
            "is in memory at a time; null: offload.piece_numel (DeepSpeed: 1e9)"),
      also(hint<int64_t>("stage3_max_reuse_distance", elements, 1000000000,
                         "the unit whose next use is farthest away is released first"),
           {"max_reuse_distance"}),
      also(field("stage3_param_persistence_threshold", ZERO_AT(zero.persistent_numel), elements,
                 "parameters of fewer elements stay gathered from their first use to the end of a step "
                 "(DeepSpeed: 1e5)"),
           {"param_persistence_threshold"}),
      also(field("stage3_model_persistence_threshold", ZERO_AT(zero.persistent_total_numel),
                 integer(0, INT64_MAX), "of these the first ones, up to so many elements in all"),
           {"model_persistence_threshold"}),
      also(hint<int64_t>("stage3_module_granularity_threshold", elements, 0, "units follow the module tree"),
           {"module_granularity_threshold"}),
      also(hint("stage3_use_all_reduce_for_fetch_params", boolean(), false, "units are all-gathered"),
           {"use_all_reduce_for_fetch_params"}),
      also(hint("stage3_allgather_sequential", boolean(), false, "units are all-gathered whole"),
           {"allgather_sequential"}),
      hint("use_multi_rank_bucket_allreduce", boolean(), true, "gradients are reduce-scattered"),
      hint("memory_efficient_linear", boolean(), true, "every module is treated alike"),
      hint("override_module_apply", boolean(), true, "construction is lazy by zero::lazily"),
      hint("log_trace_cache_warnings", boolean(), false, "the schedule is recorded anew when it changes"),
      hint("enable_sanity_checks", boolean(), false, "the engine's checks are always on"),
      hint("ignore_unused_parameters", boolean(), true, "parameters without a gradient are always allowed"),
  };
}

Format<TierChoice> device_of_offload() {
  return null_as(TierChoice::Device,
                 choice<TierChoice>(
                     {{"none", TierChoice::Device}, {"cpu", TierChoice::Host}, {"nvme", TierChoice::Disk}}));
}

// The old switches.
Format<TierChoice> host_or_not() {
  Format<TierChoice> format;
  format.expected = "true, false or null";
  format.parse = [](const Value& value, TierChoice& out) {
    if (value.kind != Value::Kind::Bool && value.kind != Value::Kind::Null) return false;
    out = value.kind == Value::Kind::Bool && value.boolean ? TierChoice::Host : TierChoice::Device;
    return true;
  };
  format.print = [](const TierChoice& tier) { return Json(tier == TierChoice::Host); };
  return format;
}

// An object, or null for none.
Row or_null(Row row) {
  row.read = [read_object = row.read](Reader& reader, const Value& value, const std::string& path,
                                      Config& config) {
    if (value.kind != Value::Kind::Null) read_object(reader, value, path, config);
  };
  return row;
}

// What both sections have: one file a rank holds what either puts on a disk.
Row nvme_path() {
  return shared_shorthand("nvme_path", ZERO_AT(offload.how.path), null_as<std::string>("", text()),
                          "offload.path", "directory on a disk (offload.path)");
}
Row pin_memory() {
  return shared_shorthand("pin_memory", ZERO_AT(offload.how.pin_memory), boolean(), "offload.pin_memory",
                          "page-locked memory (offload.pin_memory)");
}

Row offload_param_row() {
  return or_null(section<Config>(
      "offload_param",
      {shorthand("device", ZERO_AT(offload.parameter), device_of_offload(), "offload.parameter",
                 "cpu is host, nvme disk (offload.parameter)"),
       nvme_path(),
       field("buffer_count", ZERO_AT(offload.parameter_buffers), nullable(integer(1, 1024)),
             "of parameters on disk, elements of a rank that are read ahead: at most this times buffer_size; "
             "null: 5"),
       field("buffer_size", ZERO_AT(offload.parameter_buffer_numel), nullable(integer(1, int64_t{1} << 32)),
             "elements; null: the prefetch alone bounds what is read ahead (DeepSpeed: 1e8)"),
       shorthand(
           "max_in_cpu", ZERO_AT(offload.how.parameter_host_numel), integer(0),
           "offload.parameter_host_numel",
           "nvme: elements that stay in the host's memory (offload.parameter_host_numel; DeepSpeed: 1e9)"),
       pin_memory()},
      true));
}

Row offload_optimizer_row() {
  const auto like = [](const std::string& name, auto at, auto format, const std::string& key,
                       const std::string& doc) {
    return shorthand(name, at, std::move(format), "offload." + key, doc + " (offload." + key + ")");
  };
  return or_null(section<Config>(
      "offload_optimizer",
      {like("device", ZERO_AT(offload.optimizer), device_of_offload(), "optimizer", "cpu is host, nvme disk"),
       nvme_path(),
       like("ratio", ZERO_AT(offload.how.ratio), number_within(0, 1), "ratio", "share that is offloaded"),
       like("buffer_count", ZERO_AT(offload.how.buffer_count), count(2, 1024), "buffer_count",
            "pieces in memory at a time"),
       pin_memory(),
       like("pipeline_read", ZERO_AT(offload.how.read_ahead), boolean(), "read_ahead",
            "read while computing (DeepSpeed: false)"),
       like("pipeline_write", ZERO_AT(offload.how.write_behind), boolean(), "write_behind",
            "write while computing (DeepSpeed: false)"),
       hint("fast_init", boolean(), false, "states begin as zeros that are never written"),
       hint("cpuadam_cores_perc", number_within(0, 1), 0.8, "every rank uses its own threads"),
       off("super_offload", {false}, "the step waits for the gradient's norm")},
      true));
}

Rows zero_off_rows() {
  const std::vector<Json> no{false};
  return {
      offload_param_row(),
      offload_optimizer_row(),
      off("zenflow", {nullptr}, "no ZenFlow"),
      off("round_robin_gradients", no, "gradients are not copied to the CPU"),
      off("elastic_checkpoint", no, "DeepSpeed's legacy checkpoints"),
      off("load_from_fp32_weights", {true}, "checkpoints hold the fp32 master"),
      also(hint("stage3_gather_16bit_weights_on_model_save", boolean(), false,
                "checkpoints are sharded; `zero consolidate` makes whole weights of one"),
           {"gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"}),
      hint<int64_t>(
          "zero_hpz_partition_size", integer(1), 1,
          "no second shards for backward: residency.budget keeps units from forward to backward, and "
          "what ranks of one host gather crosses the network once for all of them"),
      off("zero_quantized_weights", no, "no quantized traffic"),
      off("zero_quantized_nontrainable_weights", no, "no quantized traffic"),
      off("zero_quantized_gradients", no, "no quantized traffic"),
      off("zeropp_loco_param", {nullptr}, "no quantized traffic"),
      off("mics_hierarchical_params_gather", no, "gathers are one level"),
      off("pipeline_loading_checkpoint", no, ""),
      off("save_muon_momentum_buffer_in_memory", no, "Muon's momentum follows offload.optimizer"),
      off(OffSection{"leaf_module",
                     "classes",
                     {Json::array(), nullptr},
                     {"names", "name_suffixes"},
                     "units follow the module tree",
                     true}),
      off("legacy_stage1", no, ""),
      shorthand("cpu_offload", ZERO_AT(offload.optimizer), host_or_not(), "offload.optimizer",
                "true: host (offload.optimizer)"),
      shorthand("cpu_offload_param", ZERO_AT(offload.parameter), host_or_not(), "offload.parameter",
                "true: host (offload.parameter)"),
      shared_shorthand("cpu_offload_use_pin_memory", ZERO_AT(offload.how.pin_memory),
                       null_as(true, boolean()), "offload.pin_memory",
                       "page-locked memory (offload.pin_memory)"),
  };
}

Row mics_row() {
  Format<int> format;
  format.expected = "-1 or an integer >= 1";
  format.parse = [](const Value& value, int& out) {
    int ranks = 0;
    if (!count(-1).parse(value, ranks) || ranks == 0) return false;
    out = ranks < 0 ? 0 : ranks;
    return true;
  };
  return shorthand("mics_shard_size", ZERO_AT(parallel.shard_group_ranks), format, "parallel.shard_group",
                   "ranks that share a shard; -1: all (parallel.shard_group)");
}

}  // namespace

Rows deepspeed_batch_rows() {
  const Format<int64_t> size = null_as<int64_t>(0, integer(1, kMaxCount));
  return {
      auto_noted(field("train_batch_size", ZERO_AT(train_batch_size), size,
                       "samples an optimizer step; null: inferred. Equals the next two times the ranks")),
      auto_noted(field("train_micro_batch_size_per_gpu", ZERO_AT(train_micro_batch_size), size,
                       "samples a rank and micro-batch; null: inferred")),
      auto_noted(field("gradient_accumulation_steps", ZERO_AT(gradient_accumulation_steps), size,
                       "micro-batches an optimizer step; null: inferred")),
      auto_noted(field("gradient_clipping", ZERO_AT(gradient_clipping), number_at_least(0),
                       "global L2 norm; 0: off")),
      field("prescale_gradients", ZERO_AT(prescale_gradients), boolean(),
            "divide by the ranks before the reduction, not after it"),
      field("gradient_predivide_factor", ZERO_AT(gradient_predivide_factor), number_above(0),
            "divided by before the reduction, the rest of the ranks after it"),
      off("managed_gradient_accumulation", {true}, "the engine counts micro-batches"),
      off("gradient_allreduce_op", {"mean"}, "gradients are averaged"),
      field("communication_data_type", ZERO_AT(precision.communication_dtype), nullable(training_dtype()),
            "type of gradients on the wire; null: what loses nothing, fp32 or the parameters'"),
      shorthand("steps_per_print", ZERO_AT(logging.print_interval_steps), integer(1),
                "logging.print_interval_steps",
                "steps between progress lines (logging.print_interval_steps)"),
      data_types_row(),
      bf16_row(),
      fp16_row(),
      torch_autocast_row(),
  };
}

Row zero_optimization_row() {
  Rows rows{field("stage", ZERO_AT(zero.stage), count(0, kStages - 1),
                  "0 data parallel, 1 shards optimizer states, 2 gradients too, 3 parameters too")};
  for (Rows part : {bucket_rows(), Rows{mics_row()}, zero_hint_rows(), zero_off_rows()}) {
    for (Row& row : part) rows.push_back(std::move(row));
  }
  Row row = section<Config>("zero_optimization", std::move(rows), true);
  row.read = [read_object = row.read](Reader& reader, const Value& value, const std::string& path,
                                      Config& config) {
    if (value.kind != Value::Kind::Bool) return read_object(reader, value, path, config);
    config.zero.stage = value.boolean ? 1 : 0;
  };
  return row;
}

}  // namespace zero::config

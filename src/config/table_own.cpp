// Our own sections, and those of DeepSpeed that share a name with one of them.

#include "config/rows.h"

#define ZERO_AT(path) (+[](Config & config) -> auto& { return config.path; })
#define ZERO_AT_GROUP(path) (+[](ParameterGroupConfig & group) -> auto& { return group.path; })

namespace zero::config {

namespace {

constexpr int kMaxWidth = 1 << 24;

Row data_row() {
  return section<Config>(
      "data",
      {field("train", ZERO_AT(data.train), text(), "token file to train on"),
       field("eval", ZERO_AT(data.eval), text(), "token file to evaluate on"),
       field("tokenizer", ZERO_AT(data.tokenizer), text(), "directory of the tokenizer"),
       field("sequence_length", ZERO_AT(data.sequence_length), null_as<int64_t>(0, integer(1, kMaxWidth)),
             "tokens of a sample; null: model.context_length"),
       field("seed", ZERO_AT(data.seed), null_as<int64_t>(-1, integer(0)),
             "of the order of samples; null: run.seed"),
       field("shuffle", ZERO_AT(data.shuffle), boolean(), "false: in the order of the file")});
}

Row parallel_row() {
  using Backend = ParallelConfig::Backend;
  const auto backends = choice<Backend>(
      {{"auto", Backend::Auto}, {"shm", Backend::Shm}, {"gloo", Backend::Gloo}, {"nccl", Backend::Nccl}},
      {"mpi", "ucc"});
  return section<Config>(
      "parallel",
      {field("ranks", ZERO_AT(parallel.ranks), null_as(0, count(1)),
             "ranks that must come; null: any number"),
       field("tensor", ZERO_AT(parallel.tensor), count(1), "ranks that share each layer, the mesh's axis tp"),
       field("sequence", ZERO_AT(parallel.sequence), boolean(),
             "between layers these ranks share the sequence, too"),
       field("vocabulary", ZERO_AT(parallel.vocabulary), boolean(),
             "these ranks share embedding, head and loss; false: all compute the same"),
       field("tensor_across_hosts", ZERO_AT(parallel.tensor_across_hosts), boolean(),
             "whether these ranks may be on several hosts: every layer's sums cross the network then"),
       field("pipeline", ZERO_AT(parallel.pipeline), count(1),
             "ranks that a sample goes through, with a part of the layers each: the mesh's axis pp"),
       field("schedule", ZERO_AT(parallel.schedule),
             choice<std::string>({{"1f1b", "1f1b"},
                                  {"gpipe", "gpipe"},
                                  {"interleaved", "interleaved"},
                                  {"zb-h1", "zb-h1"},
                                  {"zb-h2", "zb-h2"},
                                  {"zb-v", "zb-v"},
                                  {"search", "search"}}),
             "of a pipeline's forwards and backwards: the same results, other times and memory"),
       field("chunks", ZERO_AT(parallel.chunks), count(1, 64), "interleaved: stages of a rank"),
       field("balance", ZERO_AT(parallel.balance),
             choice<ParallelConfig::Balance>({{"cost", ParallelConfig::Balance::Cost},
                                              {"parameters", ParallelConfig::Balance::Parameters},
                                              {"uniform", ParallelConfig::Balance::Uniform}}),
             "of stages: the slowest's operations, the largest's parameters, or numbers of blocks"),
       field("stage_blocks", ZERO_AT(parallel.stage_blocks), list_of_counts(),
             "blocks of each stage, by hand; []: by balance"),
       field("shard_group", ZERO_AT(parallel.shard_group_ranks), null_as(0, count(1)),
             "hybrid: ranks that share a shard, replicated across; null: all"),
       field("timeout_s", ZERO_AT(parallel.timeout_s), number_above(0),
             "seconds until a collective is an error"),
       field("backend", ZERO_AT(parallel.backend), backends,
             "auto: nccl on CUDA, else shm inside a host and gloo across hosts"),
       field("communication", ZERO_AT(parallel.communication),
             choice<Communication>({{"exact", Communication::exact}, {"fast", Communication::fast}}),
             "exact: gradients are summed in rank order in fp32; fast: on CUDA by NCCL, in an order and the "
             "type "
             "of its own, on CPU host by host"),
       field("threads_per_rank", ZERO_AT(parallel.threads_per_rank), null_as(0, count(1, 4096)),
             "compute threads; null: the cores divided by the local ranks"),
       field("bind_cores", ZERO_AT(parallel.bind_cores), boolean(),
             "keep each rank on its part of the host's cores; for ranks that have the host to themselves")});
}

// DeepSpeed's 0 is off.
Format<int> autotp_size() {
  Format<int> format = count(0);
  format.expected = "an integer >= 0";
  format.parse = [](const Value& value, int& out) {
    if (!count(0).parse(value, out)) return false;
    out = std::max(out, 1);
    return true;
  };
  return format;
}

// A switch that says the opposite.
Format<bool> disabled() {
  Format<bool> format = boolean();
  format.parse = [](const Value& value, bool& out) {
    if (!boolean().parse(value, out)) return false;
    out = !out;
    return true;
  };
  return format;
}

// DeepSpeed's and optimum-neuron's names of parallel.tensor and what belongs to it.
Rows tensor_parallel_rows() {
  const char* const kPlan = "our models have plans of their own";
  return {
      section<Config>("tensor_parallel",
                      {shorthand("autotp_size", ZERO_AT(parallel.tensor), autotp_size(), "parallel.tensor",
                                 "ranks that share each layer; 0: 1 (parallel.tensor)"),
                       off("preset_model", {nullptr}, kPlan), off("partition_config", {nullptr}, kPlan),
                       off("tp_overlap_comm", {false}, "sums are waited for")}),
      shorthand("tensor_parallel_size", ZERO_AT(parallel.tensor), count(1), "parallel.tensor",
                "optimum-neuron's name of parallel.tensor"),
      shorthand("pipeline_parallel_size", ZERO_AT(parallel.pipeline), count(1), "parallel.pipeline",
                "optimum-neuron's name of parallel.pipeline"),
      shorthand("disable_sequence_parallel", ZERO_AT(parallel.sequence), disabled(), "parallel.sequence",
                "optimum-neuron's: not parallel.sequence"),
      shorthand("disable_embedding_parallelization", ZERO_AT(parallel.vocabulary), disabled(),
                "parallel.vocabulary", "optimum-neuron's: not parallel.vocabulary")};
}

Row cuda_row() {
  return section<Config>(
      "cuda", {field("memory", ZERO_AT(cuda.memory_bytes), bytes(),
                     "of its CUDA device that a rank may take for tensors; null: all"),
               field("expandable_segments", ZERO_AT(cuda.expandable_segments), boolean(),
                     "LibTorch's allocator grows its blocks in place; PYTORCH_ALLOC_CONF, where it is set, "
                     "says itself")});
}

Row checkpoint_row() {
  using OnFailure = CheckpointConfig::OnFailure;
  return section<Config>(
      "checkpoint",
      {field("directory", ZERO_AT(checkpoint.directory), nonempty_text(), "relative to run.directory"),
       field("interval_steps", ZERO_AT(checkpoint.interval_steps), integer(0),
             "0: none between start and end"),
       field("keep_last", ZERO_AT(checkpoint.keep_last), integer(0), "newest checkpoints kept; 0: all"),
       field("save_at_end", ZERO_AT(checkpoint.save_at_end), boolean(), "save after the last step"),
       field("async", ZERO_AT(checkpoint.async), boolean(),
             "train on while a copy of the values, in host memory, is written"),
       field("trainable_only", ZERO_AT(checkpoint.trainable_only), boolean(),
             "leave frozen parameters out; a resumed run needs them as it began with them"),
       field("on_failure", ZERO_AT(checkpoint.on_failure),
             choice<OnFailure>({{"stop", OnFailure::Stop}, {"continue", OnFailure::Continue}}),
             "what a failed save on the way does; one at the end or on a signal is an error"),
       hint<std::string>("tag_validation",
                         choice<std::string>({{"Warn", "Warn"}, {"Ignore", "Ignore"}, {"Fail", "Fail"}}),
                         "Warn", "ranks always agree on a checkpoint's name"),
       off("load_universal", {false}, "DeepSpeed's universal checkpoints"),
       hint("use_node_local_storage", boolean(), false, "checkpoint.directory is one for all ranks"),
       off(OffSection{"parallel_write", "pipeline_stage", {false}, {}, "ranks always write in parallel"}),
       off("writer", {nullptr}, "DeepSpeed's writers")});
}

Row logging_row() {
  return section<Config>("logging", {field("metrics_file", ZERO_AT(logging.metrics_file), text(),
                                           "a JSON line a step, relative to run.directory; \"\": none"),
                                     field("print_interval_steps", ZERO_AT(logging.print_interval_steps),
                                           integer(1), "steps between progress lines")});
}

Row run_row() {
  return section<Config>(
      "run", {field("directory", ZERO_AT(run.directory), nonempty_text(), "everything the run writes"),
              field("steps", ZERO_AT(run.steps), integer(1), "optimizer steps"),
              field("seed", ZERO_AT(run.seed), integer(0), "of everything without a seed of its own"),
              field("eval_interval_steps", ZERO_AT(run.eval_interval_steps), integer(0),
                    "0: no evaluation on the way"),
              field("eval_batches", ZERO_AT(run.eval_batches), integer(1),
                    "micro-batches a rank in an evaluation")});
}

Row residency_row() {
  return section<Config>(
      "residency",
      {field("budget", ZERO_AT(residency.budget_bytes), bytes(),
             "of full parameters resident at stage 3; null: what the plan needs"),
       field("prefetch", ZERO_AT(residency.prefetch_bytes), bytes(),
             "fetched ahead at most; 0: on demand; null: as much as the budget allows"),
       field("share", ZERO_AT(residency.share), boolean(),
             "ranks of one host keep one copy of the parameters between them; stage 0 is stage 1 there"),
       field("split_master", ZERO_AT(residency.split_master), boolean(),
             "of an fp32 master keep only the 16 bits that a bf16 parameter lacks"),
       field("group_numel", ZERO_AT(residency.group_numel), integer(1),
             "elements; parameters outside lists are grouped into units up to this"),
       field("shard_unit", ZERO_AT(residency.shard_unit),
             choice<ShardUnit>({{"bucket", ShardUnit::Bucket}, {"tensor", ShardUnit::Tensor}}),
             "what is cut into a part a rank: a block's parameters together, or each parameter by itself"),
       field("gathered", ZERO_AT(residency.gathered_ratio), number_within(0, 1),
             "stage 3: share of the elements that stay resident over a step, in whole units, beside the "
             "budget")});
}

Row offload_row() {
  const Format<int64_t> elements = integer(0);
  return section<Config>(
      "offload",
      {field("parameter", ZERO_AT(offload.parameter), tier_choice(),
             "where a rank's part of the parameters is while no slab holds it, at stage 3; host: on CPU the "
             "same memory as none; auto: see memory"),
       field("gradient", ZERO_AT(offload.gradient), tier_choice(),
             "where summed gradients are between their unit's backward and the step"),
       field("master", ZERO_AT(offload.master), nullable(tier_choice()),
             "where masters are between steps; null: where optimizer states are"),
       field("optimizer", ZERO_AT(offload.optimizer), tier_choice(),
             "where optimizer states are between steps"),
       field(
           "memory", ZERO_AT(offload.memory_bytes), bytes(),
           "auto: of a rank, where it computes, for states, activations and buffers together; what is moved "
           "away is what costs the least"),
       field("host_memory", ZERO_AT(offload.host_memory_bytes), bytes(),
             "auto: of the host's memory beside a device, of a rank; null: no bound"),
       field("disk_space", ZERO_AT(offload.disk_bytes), bytes(), "auto: of a rank's file; null: no bound"),
       field("path", ZERO_AT(offload.how.path), text(),
             "directory on a disk, for files without a name; disk needs it"),
       field(
           "ratio", ZERO_AT(offload.how.ratio), number_within(0, 1),
           "share of the trainable elements whose gradients, masters and optimizer states are offloaded, in "
           "whole units, the first ones first; the others stay"),
       field("parameter_ratio", ZERO_AT(offload.how.parameter_ratio), number_within(0, 1),
             "share of the elements whose parameters are offloaded, likewise"),
       field("parameter_host_numel", ZERO_AT(offload.how.parameter_host_numel), elements,
             "parameter disk: so many elements, of all ranks, stay in the host's memory"),
       field("buffer_count", ZERO_AT(offload.how.buffer_count), count(2, 1024),
             "pieces of states in memory at a time"),
       field("piece_numel", ZERO_AT(offload.how.piece_numel), integer(1024, int64_t{1} << 32),
             "elements of a piece"),
       field("read_ahead", ZERO_AT(offload.how.read_ahead), boolean(),
             "read pieces while others are updated"),
       field("write_behind", ZERO_AT(offload.how.write_behind), boolean(),
             "write pieces while training goes on"),
       field("step_in_backward", ZERO_AT(offload.how.step_in_backward),
             choice<StepInBackward>({{"auto", StepInBackward::Auto},
                                     {"on", StepInBackward::On},
                                     {"in_place", StepInBackward::InPlace},
                                     {"off", StepInBackward::Off}}),
             "disk: update units while backward goes on; auto: where nothing is clipped. Their part of the "
             "file is twice as large, but in_place: then a step that is not finite, or a backward that "
             "fails, loses the states, and the run must go on from a checkpoint"),
       field("block_bytes", ZERO_AT(offload.how.block_bytes), integer(4096, int64_t{1} << 30),
             "of one transfer and one checksum; a multiple of 4096"),
       field("queue_depth", ZERO_AT(offload.how.queue_depth), count(1, 4096), "transfers under way"),
       field("threads", ZERO_AT(offload.how.threads), count(1, 256),
             "that transfer where io_uring is not permitted"),
       field("pin_memory", ZERO_AT(offload.how.pin_memory), boolean(),
             "host, beside a device: page-locked memory")});
}

// DeepSpeed's, of what moves states to a disk and back.
Row aio_row() {
  return section<Config>(
      "aio", {shorthand("block_size", ZERO_AT(offload.how.block_bytes), integer(4096, int64_t{1} << 30),
                        "offload.block_bytes", "bytes of one transfer (offload.block_bytes)"),
              shorthand("queue_depth", ZERO_AT(offload.how.queue_depth), count(1, 4096),
                        "offload.queue_depth", "transfers under way (offload.queue_depth; DeepSpeed: 8)"),
              also(shorthand("intra_op_parallelism", ZERO_AT(offload.how.threads), count(1, 256),
                             "offload.threads", "threads without io_uring (offload.threads; DeepSpeed: 1)"),
                   {"thread_count"}),
              hint("single_submit", boolean(), false, "transfers are submitted as they come"),
              hint("overlap_events", boolean(), true, "transfers are submitted while others are under way"),
              hint("use_gds", boolean(), false, "states pass through the host's memory")});
}

// "none", "all", "auto", or every so many-th block.
Format<int64_t> recompute_policy() {
  Format<int64_t> format =
      choice<int64_t>({{"none", kRecomputeNone}, {"all", kRecomputeAll}, {"auto", kRecomputeAuto}});
  format.expected += " or an integer >= 1";
  format.schema = {{"anyOf", {format.schema, integer(1).schema}}};
  format.parse = [word = format.parse, number = integer(1).parse](const Value& value, int64_t& out) {
    return word(value, out) || number(value, out);
  };
  format.print = [word = format.print](const int64_t& every) {
    const Json name = word(every);
    return name.is_null() ? Json(every) : name;
  };
  return format;
}

// DeepSpeed's section, in which the model's code says what is recomputed; of our models the key recompute
// does.
Row activation_checkpointing_row() {
  return section<Config>(
      "activation_checkpointing",
      {field("recompute", ZERO_AT(recompute.every), recompute_policy(),
             "blocks whose activations are computed again in backward, with the same bits; k: every k-th "
             "block; "
             "auto: what takes the least time in memory, from the first step's measures"),
       field("memory", ZERO_AT(recompute.memory_bytes), bytes(),
             "auto: what a rank's blocks may keep of a micro-batch; null: what the machine has left"),
       field("offload", ZERO_AT(recompute.tier),
             choice<ActivationTier>({{"none", ActivationTier::Device},
                                     {"host", ActivationTier::Host},
                                     {"disk", ActivationTier::Disk},
                                     {"auto", ActivationTier::Auto}}),
             "where what blocks keep, and inputs of recomputed ones, wait for backward; with recompute auto "
             "what a block may choose beside; host: on CPU the same memory as none"),
       field("offload_path", ZERO_AT(recompute.path), text(),
             "directory on a disk, for files without a name; \"\": offload.path"),
       field("offload_buffer_size", ZERO_AT(recompute.buffer_bytes), bytes(),
             "memory that activations on a disk pass through, each way"),
       field("cpu_checkpointing", ZERO_AT(recompute.inputs_on_host), boolean(),
             "inputs of recomputed blocks on a device wait in memory of the host"),
       field("partition_activations", ZERO_AT(recompute.partition_inputs), boolean(),
             "parallel.tensor: of a recomputed block's input each rank of a layer keeps its part, which are "
             "gathered in backward"),
       hint("contiguous_memory_optimization", boolean(), false,
            "inputs that wait are tensors of their own, of one size, which the allocator gives again"),
       hint<std::optional<int64_t>>(
           "number_checkpoints", nullable(integer(1)), std::nullopt,
           "the length of contiguous_memory_optimization's buffer; recompute says how "
           "many blocks keep their input alone"),
       hint("synchronize_checkpoint_boundary", boolean(), false, "kernels are ordered by their streams"),
       hint("profile", boolean(), false, "a trace shows every unit (zero train --trace)")});
}

Row parameter_groups_row() {
  using Group = ParameterGroupConfig;
  std::vector<Key<Group>> rows{
      field("pattern", ZERO_AT_GROUP(pattern), glob(), "over parameter names; the first match counts"),
      field("lr", ZERO_AT_GROUP(lr), nullable(number_at_least(0)), "instead of optimizer.params.lr"),
      field("lr_scale", ZERO_AT_GROUP(lr_scale), number_at_least(0), "times optimizer.params.lr"),
      field("weight_decay", ZERO_AT_GROUP(weight_decay), nullable(number_at_least(0)),
            "instead of optimizer.params.weight_decay"),
      field("elementwise", ZERO_AT_GROUP(elementwise), boolean(),
            "Muon: AdamW's update for matrices too, as for embeddings and heads")};
  return list("parameter_groups", ZERO_AT(parameter_groups), std::move(rows),
              "parameters with their own lr or decay");
}

}  // namespace

Rows own_rows() {
  Row precision = section<Config>(
      "precision",
      {field("fp32", ZERO_AT(precision.fp32_parameters), list_of_globs(),
             "names of parameters that stay fp32 in a bf16 or fp16 model: operators that read one compute in "
             "fp32"),
       field(
           "stochastic_rounding", ZERO_AT(precision.stochastic_rounding), boolean(),
           "bf16 parameters without a master; updates are rounded up or down at random, exact in the mean")});
  Rows rows{
      ignored_text("$schema", "where an editor finds the schema that `zero config --schema` prints"),
      parameter_groups_row(),
      field("frozen", ZERO_AT(frozen), list_of_globs(), "names of parameters that are not trained"),
      field("trainable", ZERO_AT(trainable), list_of_globs(),
            "if any are given, only these names are trained"),
      lora_row(),
      std::move(precision),
      residency_row(),
      offload_row(),
      aio_row(),
      gemini_row(),
      activation_checkpointing_row(),
      field("cpu_operators", ZERO_AT(cpu_operators), boolean(),
            "on CPU, kernels of our own for attention, GELU and products of bf16, the same to rounding; "
            "false: LibTorch's"),
      model_row(),
      data_row(),
      parallel_row(),
      cuda_row(),
      checkpoint_row(),
      logging_row(),
      run_row()};
  for (Row& row : tensor_parallel_rows()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace zero::config

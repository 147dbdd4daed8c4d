#pragma once
// The sections of the configuration as plain structs. A field's comment names its unit and, where the JSON
// spelling differs, its key. docs/configuration.md lists every key; the tables in src/config/ bind them.

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "zero/communication.h"
#include "zero/dtype.h"
#include "zero/loss_scale.h"
#include "zero/optimizer_rules.h"
#include "zero/rope_scaling.h"
#include "zero/shard_unit.h"
#include "zero/tier.h"

namespace zero {

/// A byte count that means "everything" ("all" in JSON).
inline constexpr int64_t kAllBytes = std::numeric_limits<int64_t>::max();

/// `zero_optimization`. Sizes are elements, as in DeepSpeed.
struct ZeroConfig {
  int stage = 0;                           // 0 data parallel, 1 optimizer, 2 + gradients, 3 + parameters
  std::optional<bool> overlap_comm;        // reduce during backward, gather ahead; none: true
  int64_t reduce_bucket_numel = 16777216;  // elements a gradient reduction (reduce_bucket_size)
  std::optional<int64_t> prefetch_numel;   // elements fetched ahead (stage3_prefetch_bucket_size)
  std::optional<int64_t> max_live_numel;   // elements resident at most (stage3_max_live_parameters)
  // Smaller parameters stay resident over a step (stage3_param_persistence_threshold), so many elements in
  // all (stage3_model_persistence_threshold).
  int64_t persistent_numel = 0, persistent_total_numel = kAllBytes;
  std::optional<int64_t> sub_group_numel;  // elements of a piece of the step (sub_group_size)
  bool operator==(const ZeroConfig&) const = default;
};

/// `residency`: which full parameters stay in memory where parameters are sharded.
struct ResidencyConfig {
  int64_t budget_bytes = -1;    // resident slabs; -1: what the stage implies; kAllBytes: keep everything
  int64_t prefetch_bytes = -1;  // fetched ahead at most; -1: as much as the budget allows; 0: on demand only
  bool share = true;  // from stage 1 on, ranks of one host keep one copy of the parameters between them
  bool split_master = true;       // of an fp32 master keep the 16 bits that a bf16 parameter lacks
  int64_t group_numel = 4194304;  // elements; parameters outside lists are grouped into units up to this size
  ShardUnit shard_unit = ShardUnit::Bucket;  // what is cut into shards (shard_unit)
  double gathered_ratio = 0;  // 0..1: stage 3, the share of the elements that stays resident over a step
  bool operator==(const ResidencyConfig&) const = default;
};

/// Where a kind of state is to be: "none", "host", "disk", or "auto", what takes the least time within the
/// budgets.
enum class TierChoice { Device, Host, Disk, Auto };

/// `offload`, zero_optimization.offload_param and offload_optimizer, `aio`, `gemini`: where states are while
/// nobody uses them.
struct OffloadConfig {
  TierChoice parameter = TierChoice::Device, gradient = TierChoice::Device, optimizer = TierChoice::Device;
  std::optional<TierChoice> master;  // none: where optimizer states are
  // Budgets of a rank for "auto"; -1: of memory there must be one, of the others no bound.
  int64_t memory_bytes = -1;       // where it computes (memory): states, activations and buffers together
  int64_t host_memory_bytes = -1;  // beside a device (host_memory)
  int64_t disk_bytes = -1;         // of its file (disk_space)
  // offload_param.buffer_count, buffer_size: of parameters on disk, shards of so many times so many elements
  // are read ahead at most.
  std::optional<int64_t> parameter_buffers, parameter_buffer_numel;
  OffloadOptions how;  // path must be given for "disk"
  bool is_auto() const;
  bool uses_disk() const;  // as far as it is said
  TierChoice master_choice() const { return master.value_or(optimizer); }
  bool operator==(const OffloadConfig&) const = default;
};

/// `data_types`, `bf16.enabled`, `fp16`, `communication_data_type`: what is kept and sent in which type.
struct PrecisionConfig {
  bool bf16 = false;                 // bf16.enabled: bf16 parameters with an fp32 master copy
  bool fp16 = false;                 // fp16.enabled: fp16 parameters with an fp32 master copy
  LossScaling loss_scaling;          // with fp16
  std::optional<Dtype> param_dtype;  // none: resolve() sets it from bf16 and fp16; or it must agree with them
  std::optional<Dtype> buffer_dtype;         // floating-point buffers; none: as the module made them
  std::optional<Dtype> grad_accum_dtype;     // accumulated gradients; none: resolve() sets fp32
  std::optional<Dtype> communication_dtype;  // gradients on the wire; none: what loses nothing
  bool stochastic_rounding = false;  // precision.stochastic_rounding: bf16 parameters without a master
  std::vector<std::string> fp32_parameters;  // precision.fp32: globs of parameters that stay fp32
  bool autocast = false;                     // torch_autocast.enabled: fp32 parameters, operators in
  Dtype autocast_dtype = Dtype::bf16;        // torch_autocast.dtype
  bool operator==(const PrecisionConfig&) const = default;
};

/// `optimizer`: DeepSpeed's types and parameters; SGD as torch.optim.SGD.
struct OptimizerConfig {
  OptimizerRule rule = RuleRow<AdamW>::configured;
  bool adam_w_mode = true;  // Adam, AdamW: decoupled weight decay, so that "Adam" means AdamW
  /// The rule that runs: AdamW for Adam with adam_w_mode.
  OptimizerRule effective_rule() const;
  bool operator==(const OptimizerConfig&) const = default;
};

/// `scheduler`: parameters only; fields that the type does not use keep their defaults.
struct SchedulerConfig {
  enum class Type {
    Constant,
    Linear,
    Cosine,
    WarmupLr,
    WarmupDecayLr,
    WarmupCosineLr,
    OneCycle,
    LrRangeTest,
    Polynomial,
    InverseSqrt,
    CosineRestarts,
    WarmupStableDecay
  };
  enum class Decay { Linear, Sqrt, Cosine };
  enum class Warmup { Log, Linear };
  Type type = Type::Constant;
  // Types without DeepSpeed's names: linear warm-up from 0, then constant or decay to min_lr_ratio * lr.
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;          // step at which the decay ends; 0: resolve() sets run.steps
  double min_lr_ratio = 0;          // 0..1
  double power = 1;                 // Polynomial
  int64_t timescale = 0;            // InverseSqrt; 0: warmup_steps, or 10,000 without a warm-up
  int64_t cycles = 1;               // CosineRestarts
  double cycle_growth = 1;          // CosineRestarts
  int64_t decay_steps = 0;          // WarmupStableDecay; 0: resolve() sets a tenth of total_steps
  Decay decay_shape = Decay::Sqrt;  // WarmupStableDecay
  // WarmupLR, WarmupDecayLR, WarmupCosineLR (DeepSpeed).
  int64_t warmup_num_steps = 1000;  // under 2 counts as 2, as there
  int64_t total_num_steps = 0;      // WarmupDecayLR, WarmupCosineLR; 0: resolve() sets run.steps
  Warmup warmup_type = Warmup::Log;
  double warmup_min_lr = 0;  // WarmupLR, WarmupDecayLR
  std::optional<double>
      warmup_max_lr;            // WarmupLR: none = the group's lr; WarmupDecayLR: resolve() sets 0.001
  double warmup_min_ratio = 0;  // WarmupCosineLR, share of lr
  double cos_min_ratio = 1e-4;  // WarmupCosineLR, share of lr
  // OneCycle (DeepSpeed); step sizes are steps.
  double cycle_min_lr = 0;
  double cycle_max_lr = 0;  // must be given
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size;  // none: the same as the first
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count;  // none: the same as the first
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
  // LRRangeTest (DeepSpeed).
  double lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
  bool operator==(const SchedulerConfig&) const = default;
};

/// One entry of `parameter_groups`: the first whose pattern matches a parameter's name applies.
struct ParameterGroupConfig {
  std::string pattern;                 // shell glob (* ? [..]) over the full dotted name
  std::optional<double> lr;            // instead of optimizer.params.lr; not together with lr_scale
  double lr_scale = 1;                 // times optimizer.params.lr
  std::optional<double> weight_decay;  // instead of optimizer.params.weight_decay
  bool elementwise = false;            // Muon: AdamW's update for matrices too
  bool operator==(const ParameterGroupConfig&) const = default;
};

/// `model`. The key `size` names a preset; numbers given beside it win. `from` names a model directory of
/// Hugging Face's, from which adopt_model() (hf_model.h) takes the rest.
struct ModelConfig {
  std::string from = {};      // directory; "" none: the weights are drawn
  std::string type = "gpt2";  // "gpt2", "llama" or "gpt_neox"
  int64_t vocab_size = 50257;
  int64_t context_length = 1024;  // longest sequence, tokens
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;      // must divide width, unless head_width is given
  int64_t kv_heads = 0;    // llama: heads of keys and values; 0: as many as heads; must divide them
  int64_t head_width = 0;  // llama; 0: width / heads
  int64_t mlp_width = 0;   // llama, gpt_neox; 0: 4 * width
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;      // llama, gpt_neox
  RopeScaling rope_scaling;       // llama
  double rotary_fraction = 0.25;  // gpt_neox: part of each head that is rotated
  bool parallel_residual = true;  // gpt_neox
  bool tanh_gelu = false;         // gpt_neox: GELU by its tanh approximation
  std::optional<bool> tied_head;  // the head is the embedding; none: in gpt2 only
  double dropout = 0;             // gpt2: 0..1
  int64_t seed = -1;              // initialisation; -1: resolve() sets run.seed
  bool operator==(const ModelConfig&) const = default;
};

/// `lora`: low-rank adapters beside linear layers, y = layer(x) + alpha / rank * B A x; all else is frozen.
struct LoraConfig {
  int64_t rank = 0;                  // 0: none
  double alpha = 16;                 // adapters count alpha / rank
  std::vector<std::string> targets;  // globs over names of linear layers, as "*.q_proj"
  std::string from;                  // directory of an adapter in PEFT's layout to start from; "" none
  bool operator==(const LoraConfig&) const = default;
};

/// `data`. Paths are relative to the working directory.
struct DataConfig {
  std::string train;            // token file; "" none
  std::string eval;             // token file; "" none
  std::string tokenizer;        // directory; "" none
  int64_t sequence_length = 0;  // tokens a sample, at most model.context_length; 0: resolve() sets that
  int64_t seed = -1;            // order of the samples; -1: resolve() sets run.seed
  bool shuffle = true;
  bool operator==(const DataConfig&) const = default;
};

/// `parallel`.
struct ParallelConfig {
  enum class Backend { Auto, Shm, Gloo, Nccl };
  int ranks = 0;                     // 0: any; otherwise a check against the number of ranks that come
  int tensor = 1;                    // ranks that share each layer: the axis "tp" of the mesh
  bool sequence = false;             // between layers they share the sequence, too (tensor_parallel.h)
  bool vocabulary = true;            // they share embedding, head and loss
  bool tensor_across_hosts = false;  // whether they may be on several hosts
  int pipeline = 1;                  // ranks that a sample goes through: the axis "pp" of the mesh
  std::string schedule = "1f1b";     // of the pipeline: gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, search
  int chunks = 2;                    // interleaved: stages a rank
  enum class Balance { Cost, Parameters, Uniform };
  Balance balance = Balance::Cost;    // of stages: the slowest's operations, parameters, or number of blocks
  std::vector<int64_t> stage_blocks;  // by hand: of each stage, in order; empty: by balance
  int shard_group_ranks = 0;  // hybrid: ranks that share a shard (shard_group); 0: all; must divide the ranks
  double timeout_s = 600;     // a collective or rendezvous that takes longer is an error
  Backend backend = Backend::Auto;
  int threads_per_rank = 0;                            // compute threads; 0: cores / local ranks
  bool bind_cores = false;                             // keep each rank on its part of the host's cores
  Communication communication = Communication::exact;  // how gradients are summed
  bool operator==(const ParallelConfig&) const = default;
};

/// `cuda`: memory of ranks that compute on CUDA devices; means nothing on CPU.
struct CudaConfig {
  int64_t memory_bytes = -1;        // that LibTorch may take of a rank's device; -1: all of it
  bool expandable_segments = true;  // grow blocks in place instead of fragmenting memory
  bool operator==(const CudaConfig&) const = default;
};

/// `checkpoint`.
struct CheckpointConfig {
  std::string directory = "checkpoints";  // relative to run.directory
  int64_t interval_steps = 0;             // 0: none between start and end
  int64_t keep_last = 2;                  // newest checkpoints kept; 0: all
  bool save_at_end = true;
  bool async = true;            // training goes on while a checkpoint is written, from a copy in host memory
  bool trainable_only = false;  // frozen parameters are left out
  enum class OnFailure { Stop, Continue };
  OnFailure on_failure = OnFailure::Stop;  // of a save that is not the run's last
  bool operator==(const CheckpointConfig&) const = default;
};

/// `logging`.
struct MonitorConfig {
  bool enabled = false;
  std::string output_path =
      {};  // "": run.directory/tensorboard or csv_monitor; relative to the working directory
  std::string job_name = "DeepSpeedJobName";  // a directory below it
  bool operator==(const MonitorConfig&) const = default;
};
struct WandbConfig {
  bool enabled = false;
  std::string team = {}, group = {};  // "": none
  std::string project = "deepspeed";
  bool operator==(const WandbConfig&) const = default;
};
struct FlopsProfilerConfig {
  bool enabled = false;
  int64_t profile_step = 1;      // 1 is the first
  int64_t module_depth = -1;     // of the table of modules; the model has 0; -1: all
  int64_t top_modules = 1;       // of each depth, those that have the most
  bool detailed = true;          // the table of modules
  std::string output_file = {};  // "": with the lines of progress; relative to the working directory
  bool operator==(const FlopsProfilerConfig&) const = default;
};
struct LoggingConfig {
  std::string metrics_file = "metrics.jsonl";  // relative to run.directory; "" none
  int64_t print_interval_steps = 10;           // also steps_per_print
  MonitorConfig tensorboard = {}, csv = {};    // DeepSpeed's tensorboard and csv_monitor
  WandbConfig wandb = {};                      // offline runs of W&B
  FlopsProfilerConfig flops = {};              // flops_profiler: operations of one step, by module
  bool wall_clock_breakdown = false;           // with each line of progress: where its steps' time went
  bool memory_breakdown = false;               // with each line of progress: memory by purpose and tier
  bool dump_state = false;                     // the effective configuration, at the start
  bool comms_logger = false;                   // at the end: what was sent, by axis and operation
  bool operator==(const LoggingConfig&) const = default;
};

/// `run`.
struct RunConfig {
  std::string directory = "runs/default";  // relative to the working directory
  int64_t steps = 1000;                    // optimizer steps
  int64_t seed = 0;                        // of everything whose own seed is not given
  int64_t eval_interval_steps = 0;         // 0: no evaluation on the way
  int64_t eval_batches = 16;               // micro-batches a rank in each evaluation
  bool operator==(const RunConfig&) const = default;
};

}  // namespace zero

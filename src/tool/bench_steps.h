#pragma once
// What `zero bench step` times: forward and backward alone, or the whole step of a ZeRO stage.

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench_model.h"
#include "zero/activations.h"
#include "zero/engine_options.h"
#include "zero/recompute_policy.h"

namespace zero {
class Engine;
class Mesh;
}  // namespace zero

namespace zero::tool {

/// Forward and backward without an engine; everything else is a stage's number.
inline constexpr const char* kAlone = "alone";
/// The step's own stage, on LibTorch's operators.
inline constexpr const char* kOnLibTorch = "libtorch";
/// The step's own stage, with all states in memory.
inline constexpr const char* kInMemory = "memory";
/// The step's own stage, with nothing recomputed.
inline constexpr const char* kKeepingAll = "kept";
/// Whose operators the engine computes with.
inline constexpr const char* kOurs = "ours";

/// What --offload-parts names.
inline constexpr const char* kParameterPart = "parameters";
inline constexpr const char* kGradientPart = "gradients";
inline constexpr const char* kStatePart = "states";

struct BenchArguments {
  std::string model = "gpt2", dtype = "bf16", backend = "auto", communication = "exact", device = "auto",
              operators, trace, offload = "none", disk_path, schedule = "1f1b";
  std::vector<std::string> offload_parts;  // empty: all that the stage and the place allow
  int stage = 3, ranks = 2, threads = 0, batch = 1, sequence = 256, steps = 8, warmup = 2, accumulation = 1;
  int tensor = 1, pipeline = 1, chunks = 2;  // ranks that share layers, ranks of a pipeline, stages of one
  int64_t bucket_numel = 0;
  double clipping = 1;             // of the gradient's norm; 0: none
  int disk_buffers = 0;            // 0: the engine's choice
  std::string ahead = "auto";      // OffloadOptions::step_in_backward
  std::string recompute = "none";  // or "all" or "auto"; of the first turn, not of those beside it
  int64_t memory_bytes = -1;       // auto: what the blocks may keep
  int64_t budget_bytes = 0;  // of a rank's peak, within which states are placed; 0: where --offload says
  bool plain = false, alone = false, json = false, private_parameters = false, plain_allocator = false,
       bind = false, cuts_sequence = false;
  std::vector<std::string> beside;  // kAlone, kOnLibTorch, kInMemory, kKeepingAll or stages, each once
  uint64_t seed = 1234;
};

struct Micro {
  at::Tensor tokens, targets;  // [batch, sequence] int64
};

/// A model and what is done with it.
class BenchStep {
 public:
  explicit BenchStep(BenchModel model) : model_(std::move(model)) {}
  virtual ~BenchStep() = default;
  BenchStep(const BenchStep&) = delete;
  BenchStep& operator=(const BenchStep&) = delete;

  /// The mean loss of the micro-batches.
  virtual double run(const std::vector<Micro>& micros) = 0;
  /// Null where there is none.
  virtual const Engine* engine() const { return nullptr; }

  const BenchModel& model() const { return model_; }
  /// What an automatic recomputation has chosen; "" before, and where there is none.
  const std::string& chosen() const { return chosen_; }
  /// Bytes of tensors that the last forward left, of all micro-batches the most; 0 without our allocator.
  int64_t kept_bytes() const { return kept_bytes_; }
  /// What --memory has chosen; "" without it.
  const std::string& placement() const { return placement_; }
  void say_placement(std::string text) { placement_ = std::move(text); }

 protected:
  at::Tensor forward(const std::function<at::Tensor()>& loss);
  void choose_recomputation(const Mesh& mesh);

  BenchModel model_;
  std::string chosen_, placement_;
  int64_t kept_bytes_ = 0;
};

/// Blocks of each of a pipeline's stages, so that the slowest has the fewest operations; of one stage all.
std::vector<int64_t> bench_stage_blocks(const Gpt2Shape& shape, const BenchArguments& arguments);

/// The tiers and the rest that --offload and --offload-parts ask for, at the stage of `options`.
void set_offload(EngineOptions& options, const BenchArguments& arguments);

/// What a micro-batch of the model needs, as the plan counts it.
ActivationBytes activations_of(const BenchModel& model, const BenchArguments& arguments);

/// `what` is kAlone, kOnLibTorch, kInMemory, kKeepingAll or a stage; `recompute` is that of its blocks. All
/// ranks of the mesh call together.
std::unique_ptr<BenchStep> make_bench_step(const std::string& what, const BenchArguments& arguments,
                                           const Mesh& mesh, const RecomputePolicy& recompute = {});

/// Throws Config for memory without auto, or auto without memory.
RecomputePolicy recompute_of(const BenchArguments& arguments);

}  // namespace zero::tool

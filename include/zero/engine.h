#pragma once
// The engine: shards a module over data-parallel ranks and trains it. Neither the module nor its code
// changes.
//
//   zero::Engine engine(*model, zero::AdamW{.lr = 3e-4}, {.stage = 3, .dtype = torch::kBFloat16}, mesh);
//   auto loss = engine.forward([&] { return model->forward(batch); });
//   engine.backward(loss);
//   engine.step();
//
// All ranks of the mesh make the same calls in the same order. One thread at a time uses an engine. The
// module must outlive the engine's use; after the engine is gone, parameters that were resident stay
// readable, others say that they are not.

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zero/lr_schedule.h"
#include "zero/mesh.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace zero {

/// Initial values from elsewhere than the module, such as files: each rank asks for what it keeps, and for
/// nothing else.
class InitialValues {
 public:
  virtual ~InitialValues() = default;
  /// False: the module's own value counts. The same on all ranks. `name`: a parameter's first name.
  virtual bool holds(const std::string& name) const = 0;
  /// Fills `out` (fp32, on the CPU, 1-D) with elements [begin, begin + out.numel()) of a parameter in
  /// row-major order.
  virtual void read(const std::string& name, int64_t begin, at::Tensor out) const = 0;
};

struct EngineOptions {
  // What changes results.
  int stage = 0;  // 0..3: what is sharded (placement.h)
  std::optional<at::ScalarType> dtype =
      {};  // compute dtype of floating parameters; unset: each keeps its own
  std::optional<at::ScalarType> buffer_dtype = {};  // of floating buffers; unset: `dtype`, or their own
  int accumulation_steps = 1;    // micro-batches per optimizer step; gradients are averaged over them
  double gradient_clipping = 0;  // global L2 norm; 0: off
  std::vector<ParameterGroup> groups = {};  // learning rate and decay by name pattern
  std::optional<LrSchedule> schedule = {};  // unset: the optimizer's rate, or what set_learning_rate() says
  // Gradients on the wire; sums are fp32 whatever it is. Unset: the parameters' dtype where gradients travel
  // as autograd made them, which loses nothing; fp32 where sums of several travel, or several dtypes.
  std::optional<at::ScalarType> communication_dtype = {};
  at::ScalarType accumulation_dtype = at::kFloat;  // of summed gradients between micro-batches
  double gradient_predivide_factor = 1;  // divides gradients before they travel, multiplied back afterwards
  // bf16 parameters: keep of the fp32 master only the 16 bits that the parameter lacks, which is half the
  // memory. A master half way above an even bf16 value moves by one fp32 unit in the last place. Off: a whole
  // fp32 copy, as a TorchOptimizer always gets.
  bool split_master = true;
  std::shared_ptr<const InitialValues> initial_values =
      {};  // instead of the module's own; read at construction only
  // Take rank 0's initial values. Off: all ranks built the same ones, of which each keeps its part; only
  // replicas of a shard take the first one's bits.
  bool broadcast_initial_values = true;

  // What changes memory and speed only; results are the same bits.
  int shard_group_ranks = 0;  // hybrid: shard inside groups of so many ranks; 0: over all
  int64_t budget_bytes = -1;  // stage 3: slabs resident at a time; -1: two largest units; INT64_MAX: all
  int64_t prefetch_bytes = 256LL << 20;      // slabs gathered ahead of use
  int64_t reduce_bucket_numel = 16LL << 20;  // elements per reduce-scatter
  int64_t group_numel = 4LL << 20;           // parameters outside ModuleLists are grouped up to this size
  bool overlap = true;  // false: wait for each collective at once (to compare and to debug)
  // Ranks that share memory keep one copy of the parameters between them, whatever the budget; at stage 0 of
  // everything that would be replicated: it is stage 1 there.
  bool share_parameters = true;
  // Of a weight that is an embedding and an output layer too, the embedding's gradient is its rows, added in
  // place. Off: as autograd has it, two matrices and their sum.
  bool row_gradients = true;
  // On CPU, operators of any model that LibTorch computes slowly are computed by kernels of ours, with values
  // that agree to rounding: attention, tanh GELU, log-softmax, matrix products, in bf16 the gradients of
  // biases. Off: LibTorch's bits.
  bool fast_operators = true;
};

/// What a step did.
struct StepResult {
  bool stepped = false;  // false: not at an accumulation boundary yet, nothing happened
  bool skipped = false;  // the gradient was not finite: nothing changed but the gradients, which are gone
  double lr = 0;         // base rate used
  ClipResult clip;       // norms of the averaged gradient before and after clipping
};

/// What the engine holds and has sent, to compare with plan().
struct EngineStats {
  int64_t steps = 0;  // optimizer steps taken
  int64_t skipped_steps = 0;
  int64_t all_gathers = 0;          // of slabs
  int64_t all_gather_elements = 0;  // full size, padding included; so below
  int64_t reduce_scatters = 0;
  int64_t reduce_scatter_elements = 0;
  int64_t all_reduce_elements = 0;  // of shards over replicas, counted twice
  int64_t resident_bytes = 0;       // slabs gathered beyond what this rank owns, now and at the peak
  int64_t peak_resident_bytes = 0;
  double waited_s = 0;       // blocked on collectives
  int64_t loaded_bytes = 0;  // that load() has read of tensors on this rank
  int64_t traffic_elements() const {
    return all_gather_elements + reduce_scatter_elements + all_reduce_elements;
  }
};

class Engine;
namespace detail {
struct EngineState;
class ForwardScope {
 public:
  explicit ForwardScope(EngineState& state);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  /// The forward threw: ends the pass and tells the other ranks.
  void failed(const char* reason) noexcept;

 private:
  struct Guards;
  EngineState& state_;
  std::unique_ptr<Guards> guards_;
};
}  // namespace detail

class Engine {
 public:
  /// Shards `module` (built eagerly, under lazily(), or loaded as TorchScript) over the mesh's "dp" axis.
  /// Collective. Throws Config for options out of range, Unsupported for what cannot be sharded exactly
  /// (named), before anything is sent.
  Engine(torch::nn::Module& module, OptimizerSpec optimizer, EngineOptions options, Mesh mesh);
  Engine(torch::jit::Module& module, OptimizerSpec optimizer, EngineOptions options, Mesh mesh);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs `fn`, during which parameters may be read anywhere; returns its result. Under NoGradGuard it is an
  /// evaluation and leaves no trace. Several forwards may precede one backward.
  template <class F>
  auto forward(F&& fn) {
    detail::ForwardScope scope(*state_);
    try {
      return std::forward<F>(fn)();
    } catch (const std::exception& error) {
      scope.failed(error.what());
      throw;
    }
  }

  /// Backward of a scalar loss (or of several outputs with their gradients), reducing gradients on the way.
  /// The parameters' .grad() is empty afterwards: the sums are on the shards. Throws Usage if the loss needs
  /// no gradient.
  void backward(const at::Tensor& loss);
  void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients);

  /// After the last micro-batch: averages, clips, updates the shards. Otherwise does nothing and says so.
  StepResult step();
  /// True if the next backward() is the last before step() acts.
  bool at_boundary() const;

  /// Base rate of the following steps; Usage error with a schedule.
  void set_learning_rate(double lr);
  double learning_rate() const;

  /// Full values of one parameter on every rank, fp32 on CPU: what the optimizer has (or, frozen, the
  /// parameter). Collective.
  at::Tensor full_parameter(const std::string& name);
  /// The averaged, unclipped gradient of one parameter, fp32 on CPU; between backward() and step().
  /// Collective.
  at::Tensor full_gradient(const std::string& name);
  /// One kind of optimizer state ("exp_avg", ...) of one parameter, fp32 on CPU. Collective.
  at::Tensor full_optimizer_state(const std::string& name, const std::string& kind);
  /// Names of all parameters, tied ones once, in plan order.
  std::vector<std::string> parameter_names() const;

  /// Writes parameters, optimizer state, buffers and random state under directory/step-NNNNNNNN, atomically;
  /// `metadata` is a JSON object of the caller's. Collective; if any rank fails, all throw and what was there
  /// before is untouched. With `frozen_from` frozen parameters are left out; it says where they come from, in
  /// words or as a path, for load() to name. What they must be is recorded, 8 bytes for each.
  std::filesystem::path save(const std::filesystem::path& directory, const std::string& metadata = "{}",
                             int keep_last = 0, const std::string& frozen_from = {});
  /// The same in the background: returns once this rank's values are copied into host memory, which the save
  /// keeps until they are written. Training may go on; a thread of each rank writes and sends nothing. Throws
  /// Usage while another save is under way. Collective.
  void begin_save(const std::filesystem::path& directory, const std::string& metadata = "{}",
                  int keep_last = 0, const std::string& frozen_from = {});
  /// Ends what begin_save() began, as far as it has come: call it after later steps until it returns the
  /// checkpoint's path, or with `wait` to block for that. Nothing where it is not published yet, or none was
  /// begun. What failed on any rank is thrown on all, once; the save is over then and what was there before
  /// is untouched. An engine that is destroyed first leaves the save unpublished or published. Collective.
  std::optional<std::filesystem::path> finish_save(bool wait = true);
  /// Whether finish_save() has something to end: the same on all ranks.
  bool is_saving() const;
  /// Restores what save() wrote, on any number of ranks; returns the caller's metadata. On the same number of
  /// ranks, training goes on with the same bits. Nothing changes if it throws before reading (missing or
  /// mismatched names, shapes). From a checkpoint without frozen parameters the model keeps its own, and
  /// Config is thrown unless they are those that were trained with. Collective.
  std::string load(const std::filesystem::path& checkpoint);

  const Plan& plan() const;
  const Mesh& mesh() const;
  EngineStats stats() const;
  /// The order of unit touches in the last training pass, by unit name. Empty before it.
  std::vector<std::string> schedule() const;

 private:
  friend class GatherScope;
  std::unique_ptr<detail::EngineState> state_;
};

enum class Access {
  Read,    // changes are lost or, where parameters are replicated, undefined: do not make any
  Modify,  // all ranks make the same changes; each keeps its part, for good, when the scope ends
};

/// While it lives, parameters are whole on every rank and may be read anywhere, also outside
/// engine.forward(). Collective to open; closing sends nothing. No step() inside.
class GatherScope {
 public:
  /// All parameters.
  explicit GatherScope(Engine& engine, Access access = Access::Read);
  /// The units that hold the named parameters (or units named by plan().units[].name). Throws Usage for an
  /// unknown name.
  GatherScope(Engine& engine, std::span<const std::string> names, Access access = Access::Read);
  ~GatherScope();
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;

  /// Gives all ranks the root's values of the gathered parameters: for changes that one rank made alone.
  /// Collective.
  void broadcast(int root);

 private:
  detail::EngineState& state_;
  std::vector<int> units_;
  Access access_;
};

}  // namespace zero

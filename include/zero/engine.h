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

#include "zero/engine_options.h"
#include "zero/initial_values.h"
#include "zero/mesh.h"
#include "zero/optimizer.h"
#include "zero/parameter_summary.h"
#include "zero/plan.h"
#include "zero/step_result.h"
#include "zero/torch_dtype.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace zero {

/// What went to this rank's disk and came from there.
struct DiskStats {
  std::string transport;   // "io_uring, past the system's cache"; "" where no states are on disk
  int64_t ring_bytes = 0;  // of memory through which states pass
  int64_t read_bytes = 0, written_bytes = 0;
  double busy_s = 0;         // time in which the disk was asked for something
  int64_t pieces_ahead = 0;  // of states that were updated in backward
};

/// What the engine holds and has sent, to compare with plan().
struct EngineStats {
  int64_t steps = 0;  // optimizer steps taken
  int64_t skipped_steps = 0;
  int64_t all_gathers = 0;          // of slabs
  int64_t all_gather_elements = 0;  // full size, padding included; so below
  int64_t awaited_all_gathers = 0;  // of them, those that an operator asked for: not fetched ahead of it
  int64_t recorded_schedules = 0;   // training passes that went another way than the one before
  int64_t reduce_scatters = 0;
  int64_t reduce_scatter_elements = 0;
  int64_t all_reduce_elements = 0;  // of shards over replicas, counted twice
  int64_t resident_bytes = 0;       // slabs gathered beyond what this rank owns, now and at the peak
  int64_t peak_resident_bytes = 0;
  int64_t network_bytes = 0;  // of parameters and gradients that this rank has sent to other hosts
  double waited_s = 0;        // blocked on collectives
  int64_t loaded_bytes = 0;   // that load() has read of tensors on this rank
  DiskStats disk = {};
  int64_t traffic_elements() const {
    return all_gather_elements + reduce_scatter_elements + all_reduce_elements;
  }
};

/// What one rank holds of a parameter: of its flattened elements those from `begin` on, a copy, fp32 [n] on
/// CPU; none of some.
struct LocalValues {
  int64_t begin = 0;
  at::Tensor values;
};

class Engine;
namespace detail {
struct EngineAccess;
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
  /// evaluation and leaves no trace. Forwards and backwards of a step's micro-batches may come in any order:
  /// the first forward after step() opens a *pass*, which step() closes, and the order of one pass is what
  /// fetching ahead in the next goes by.
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
  ///
  /// Each engine keeps the gradients of its own backward() and of its own parameters: where a loss runs
  /// through the module of a second engine (a GAN's critic), what arrives there is dropped, and there is
  /// nothing to zero. A plain loss.backward() that reaches the parameters throws Usage.
  void backward(const at::Tensor& loss);
  void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients);

  /// The same where losses do not count alike (micro-batches of different lengths, labels that are ignored):
  /// `loss_sum` is a sum over `weight` parts of a batch, usually its tokens with labels. The step's gradient
  /// is that of all ranks' and micro-batches' sums over all their weights, which is the mean over all parts,
  /// wherever they were. A rank that is out of data joins with any batch and weight 0: its gradient is 0. All
  /// losses of a step go this way or none; the last one waits for all ranks' weights. Throws Usage where the
  /// step has no weight at all.
  void backward_sum(const at::Tensor& loss_sum, double weight);

  /// After the last micro-batch: averages, clips, updates the shards, and ends the pass. Otherwise does
  /// nothing and says so.
  StepResult step();
  /// Forgets the pass: all forwards and backwards since the last step, with their gradients, as if they had
  /// not been. Losses that have not gone backward yet must not any more. Sends nothing; all ranks call it.
  void abandon_pass();
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
  /// One kind of optimizer state ("exp_avg", ...) of one parameter, fp32 on CPU; of 8 bits too. Collective.
  at::Tensor full_optimizer_state(const std::string& name, const std::string& kind);
  /// The same of this rank's part. Not collective.
  LocalValues local_parameter(const std::string& name);
  LocalValues local_gradient(const std::string& name);
  LocalValues local_optimizer_state(const std::string& name, const std::string& kind);

  // To write them: `values` are of a floating type, in the parameter's shape (all ranks give the same ones,
  // each keeps its part) or of this rank's part, [n]. All ranks call it. Throws Usage, with nothing changed
  // on this rank, for names, shapes and types that do not fit.

  /// Between steps; master and parameter become them.
  void set_full_parameter(const std::string& name, const at::Tensor& values);
  void set_local_parameter(const std::string& name, const at::Tensor& values);
  /// The averaged, unclipped gradient, between the last backward() and step(). Replicas of a shard (stage 0,
  /// hybrid) must be given the same.
  void set_full_gradient(const std::string& name, const at::Tensor& values);
  void set_local_gradient(const std::string& name, const at::Tensor& values);
  void set_full_optimizer_state(const std::string& name, const std::string& kind, const at::Tensor& values);
  void set_local_optimizer_state(const std::string& name, const std::string& kind, const at::Tensor& values);
  /// Names of all parameters, tied ones once, in plan order.
  std::vector<std::string> parameter_names() const;
  /// Which parameters are trained by which rule, in which group, with which rates and types, as things stand.
  std::vector<ParameterSummary> parameter_summary() const;

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
  friend struct detail::EngineAccess;
  explicit Engine(std::unique_ptr<detail::EngineState> state);

  std::unique_ptr<detail::EngineState> state_;
};

enum class Access {
  Read,    // writing is an error, which the next call of the engine throws where it is noticed
  Modify,  // all ranks make the same changes; each keeps its part, for good, when the scope ends
};

/// While it lives, parameters are whole on every rank and may be read anywhere, also outside
/// engine.forward(). Collective to open; closing sends nothing. No step() inside.
///
/// With Access::Modify values may be written in place or replaced (set_data, module.to, torch::load); a
/// parameter keeps its dtype and device. Elements that end with other bits than they began with have the new
/// value in the fp32 master too, those of a replaced tensor to the bit of fp32; all others keep their master.
/// For that time a copy of this rank's shard is kept where the shard itself is written.
///
/// Elsewhere values are not kept, and so refused, with Usage at the next call where not at once: parameters
/// cannot be read (or written) outside, unless this rank alone holds them in fp32 or frozen, as their own
/// master, where writing in place works at any time but replacing does not.
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
  void open();

  detail::EngineState& state_;
  std::vector<int> units_;
  Access access_;
};

}  // namespace zero

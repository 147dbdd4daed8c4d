#pragma once
// Optimizers on shards. An optimizer sees flat fp32 pieces of parameters and never asks how they were cut;
// where an update depends on a whole parameter, it hands partial sums to whoever knows the other ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/state_store.h"
#include "zero/lr_schedule.h"
#include "zero/optimizer.h"

namespace zero {

class GradientSquares;

/// Group index (0 = default, i + 1 = groups[i]) of every name. Throws Config, naming it, for a pattern that
/// matches no name.
std::vector<int> assign_groups(std::span<const std::string> names, std::span<const ParameterGroup> groups);

/// The part of one parameter that this rank's shard of a unit holds.
struct ShardSegment {
  std::string name;             // the parameter's
  int parameter = 0;            // its index over all units, same on every rank
  int group = 0;                // parameter group
  int64_t begin = 0, end = 0;   // elements inside the shard
  int64_t parameter_begin = 0;  // first element inside the (flattened) parameter
  // Elements inside the shard that this rank adds to sums over all ranks (the gradient's norm, a rule's sums
  // of a parameter). Where several ranks hold the same elements, each is counted by one of them.
  int64_t counted_begin = 0, counted_end = 0;
  // What of them this rank adds to sums over the ranks along "dp" alone; as counted_* where there are no
  // others.
  int64_t summed_begin = 0, summed_end = 0;
  int dims = 2;            // of the whole parameter
  bool is_matrix = false;  // and updated as one, where the rule knows matrices: then it is in `matrices`
  int64_t numel() const { return end - begin; }
};

/// A whole matrix in a unit's slab, of which ranks may hold parts.
struct SlabMatrix {
  int parameter = 0;   // as ShardSegment's
  int64_t offset = 0;  // elements from the slab's beginning, row-major
  int64_t rows = 0, cols = 0;
};

/// A parameter's whole shape, for rules that keep means over its rows and columns.
struct FactoredParameter {
  int parameter = 0;  // as ShardSegment's
  std::string name;
  std::vector<int64_t> shape;
  // Where this rank's module has a part of it: the part's shape, and of each of its rows and columns, over
  // all matrices, which one of the whole it is. Else empty.
  std::vector<int64_t> own_shape = {}, row_places = {}, column_places = {};
  bool is_cut = false;
};

/// One state of one parameter that every rank keeps whole: elements of a state of the unit's in the store.
struct WholeState {
  int unit = 0;
  std::string kind;  // "exp_avg_sq_row"
  int64_t begin = 0;
  std::string name;            // the parameter's
  std::vector<int64_t> shape;  // the state's
};

/// One unit's shard on this rank, whose values are in a StateStore: 1-D, [shard_numel] each; elements outside
/// all segments are padding and stay 0.
///   kMasterState     fp32, updated. Or int16, where the parameter is bf16: what the master's bits exceed the
///                    parameter's by, so that the two together are the master, to one unit in the last place
///                    (split_masters_work()). Or the bf16 parameter itself, rounded stochastically
///   kGradientState   fp32, bf16 or fp16: raw sum over ranks and micro-batches; read only
///   kParameterState  fp32, bf16 or fp16; written from the master in the same pass. May be the master itself,
///   or
///                    missing
struct OptimizerShard {
  int unit = 0;                                  // in the store
  Tier tier = Tier::Device;                      // of the states that the optimizer creates
  std::vector<ShardSegment> segments;            // ascending, disjoint
  std::vector<SlabMatrix> matrices = {};         // of the unit, those of other ranks too
  std::vector<FactoredParameter> factored = {};  // likewise; Adafactor's
};

/// A step of which the device knows first whether anything changes, and how much: the host does not wait.
/// Values are fp64 on the device of the shards.
struct DeviceDecision {
  at::Tensor squared_norm;  // [1], of all gradients; where it is not finite nothing changes
  at::Tensor used;          // [parameters]: above 0 where one had a gradient on some rank
  double max_norm = 0;      // as clip_result's
  /// As StepInput::sum_over_ranks: [parameters, sums], returns the sums over all ranks.
  std::function<at::Tensor(const at::Tensor& sums)> sum_over_ranks;
};

/// Between the ranks that share the shards of each unit. What travels: fp32, on the shards' device.
struct ShardExchange {
  int rank = 0, ranks = 1;
  std::function<at::Tensor(const at::Tensor& shard)> all_gather;     // the slab [ranks * n] of shards [n]
  std::function<at::Tensor(const at::Tensor& slab)> reduce_scatter;  // this rank's [n] of the slabs' sum
};

/// Over all ranks of an axis, in place; all get the same bits.
struct AxisReductions {
  std::function<void(std::span<double>)> add_up;   // whole numbers, whose sums are exact
  std::function<void(std::span<double>)> largest;  // the largest of the ranks'
};

/// Along another axis than "dp": parameters of which its ranks have parts, in the same order on each.
struct CutParameters {
  std::vector<int> parameters;
  AxisReductions along;
};

struct StepInput {
  /// Times the raw gradient: 1 / (ranks * micro-batches * loss scale) * clip coefficient (this one only where
  /// the host decides).
  double gradient_scale = 1;
  /// This step's base rate.
  double lr = 0;
  /// By parameter index; 0: it had no gradient on any rank and is skipped, as torch does.
  std::span<const char> used = {};
  /// Instead of the spec's: LrSchedule::betas_at. Unsupported where the optimizer has none.
  std::optional<Betas> betas = {};
  /// Adds up partial sums of whole parameters over the ranks that hold parts of them, in place; every rank
  /// gets the same bits. Called at most once a step, by all ranks or by none: whether depends on the rule
  /// alone. Empty: the shards hold whole parameters. Each number is a digit of an exact sum (exact_sum.h): a
  /// whole number whose sum over the ranks is exact in any order.
  std::function<void(std::span<double> sums)> sum_over_ranks = {};
  /// For rules that need whole matrices; null: the shards are whole slabs. All ranks call it alike.
  const ShardExchange* exchange = nullptr;
  /// For rules that need sums over rows and columns; null: no other rank counts elements. All ranks call them
  /// alike.
  const AxisReductions* dp = nullptr;
  /// Likewise, after those along "dp".
  std::span<const CutParameters> cut = {};
  /// In place of `used` and `sum_over_ranks`, where decides_on_device(). The host's part of the step,
  /// count_step(), follows when it knows: before the next one.
  const DeviceDecision* on_device = nullptr;
  /// Accepted already, see AheadUpdates.
  std::span<const StatePiece> done = {};
};

/// Updates of single pieces whose states are on disk, before it is known whether the step happens: what is on
/// disk and the parameter stay what they are until accept(). (SuperOffload, arXiv 2509.21271, calls it
/// speculation then validation.) In place what is on disk is new at once.
class AheadUpdates {
 public:
  virtual ~AheadUpdates() = default;
  /// Of a unit; none where some of what an update changes is neither on disk nor its parameter.
  virtual std::vector<StatePiece> pieces(int unit) const = 0;
  /// Units that are updated next, in this order: by step() as well.
  virtual void announce(std::span<const int> units) = 0;
  /// Whether a piece is the next of what was announced, or of what is there already.
  virtual bool is_next(const StatePiece& piece) const = 0;
  /// Whether update() of the next piece need not wait for the disk.
  virtual bool is_there(const StatePiece& piece) const = 0;
  /// Makes a piece the next one: those before it are left to step(). False, and nothing happens, where it is
  /// not to come any more.
  virtual bool skip_to(const StatePiece& piece) = 0;
  /// Of the next piece, all of whose parameters are used. `gradient`: its elements of kGradientState;
  /// undefined: the store has them. Returns the parameter's new elements, [end - begin]; undefined where
  /// those are on disk.
  virtual at::Tensor update(const StatePiece& piece, const StepInput& input, const at::Tensor& gradient,
                            bool in_place) = 0;
  /// What update() has written, not in place, counts. The caller writes the parameter, and names the piece to
  /// step().
  virtual void accept(const StatePiece& piece) = 0;
};

/// Updates all shards of one rank. State is created in the store at construction. Not thread safe; a step
/// uses at::get_num_threads() threads, and its bits do not depend on them. On CPU one fused pass per segment
/// (two where the rule needs sums of whole parameters), elsewhere at:: operators.
class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  /// One step over every used segment. Master, parameter and state change; the gradient does not. An unused
  /// parameter keeps everything: value, moments, step count. Throws Usage before any change if `input` does
  /// not fit.
  virtual void step(const StepInput& input) = 0;
  /// Whether a step may be given StepInput::on_device.
  virtual bool decides_on_device() const { return false; }
  /// Whether squared_norm_on_device() works for its shards.
  virtual bool has_squares_on_device() const { return decides_on_device(); }
  /// After such a step: what the device has decided, by parameter index. Nothing where it skipped the step.
  virtual void count_step(std::span<const char> /*used*/) {}
  /// Null where the rule or the device cannot.
  virtual AheadUpdates* ahead() { return nullptr; }
  /// Kinds of the states that every shard has in the store, for checkpoints and tests: fp32 ones ("exp_avg",
  /// ...); of moments in 8 bits the codes, uint8 ("exp_avg_codes"), and the fp32 scales of their blocks
  /// ("exp_avg_scales").
  /// To load: set_parameter_steps, then write them. Throws Unsupported, naming the type, for a torch
  /// optimizer whose state it does not know.
  virtual std::vector<std::string> state_names() const = 0;
  /// Beside those: states that are the same on every rank. To load: as those of state_names().
  virtual std::vector<WholeState> whole_states() const { return {}; }
  /// Number of steps each parameter has taken (index over all units, the same on every rank). Setting it
  /// restores bias correction; a parameter set to 0 steps starts afresh and its state becomes zero.
  virtual std::vector<int64_t> parameter_steps() const = 0;
  virtual void set_parameter_steps(std::span<const int64_t> steps) = 0;
};

/// `parameters`: how many parameters all units together have. `rounding_seed`: EngineOptions'. The store
/// outlives the optimizer. Throws Config
/// for bad values, Usage for shards that break the contract above, Unsupported for an optimizer or dtype it
/// cannot run.
std::unique_ptr<ShardOptimizer> make_shard_optimizer(const OptimizerSpec& spec,
                                                     std::vector<ParameterGroup> groups, StateStore& states,
                                                     std::vector<OptimizerShard> shards, int parameters,
                                                     uint64_t rounding_seed = 0);

/// Nothing for a TorchOptimizer.
std::optional<OptimizerRule> rule_of(const OptimizerSpec& spec);

/// Whether shards may give the optimizer masters as int16; a torch optimizer wants whole ones.
bool split_masters_work(const OptimizerSpec& spec);

/// `squared_norm`: summed over all ranks. max_norm 0: no clipping. A non-finite norm keeps coefficient 1.
/// Throws Config for a negative or non-finite max_norm.
ClipResult clip_result(double squared_norm, double max_norm);

/// Sum of squares of gradient * scale over the counted elements of the used segments, in fp64: fixed blocks
/// in element order, so the bits do not depend on the number of threads. Not finite if a gradient is not.
/// Contracts as ShardOptimizer::step. `left`: of all elements of gradients that are not there any more; null:
/// all are.
double squared_norm(StateStore& states, std::span<const OptimizerShard> shards, double scale,
                    std::span<const char> used, const GradientSquares* left = nullptr);
/// The same of all segments, used or not, in the memory of a device that has the fused operators: fp64 [1]
/// there, the CPU's bits. The host does not wait. `left`: of gradients that are on the host by now; null:
/// there are none.
at::Tensor squared_norm_on_device(StateStore& states, std::span<const OptimizerShard> shards, double scale,
                                  c10::Device device, const GradientSquares* left = nullptr);

}  // namespace zero

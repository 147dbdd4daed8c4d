#pragma once
// ShardOptimizer over our own update rules.

#include <functional>
#include <memory>
#include <utility>

#include "optim/adafactor.h"
#include "optim/fused_operators.h"
#include "optim/kernels/rules.h"
#include "optim/rule_memory.h"
#include "optim/shard_optimizer.h"

namespace zero {

/// How updates run: kernels for CPU memory; the same as one operator each, where the device has them
/// (fused_operators.h); many at:: operators for any device.
enum class Execution : uint8_t { kernels, fused_operators, operators };

class RuleOptimizer : public ShardOptimizer, private AheadUpdates {
 public:
  /// Arguments as make_shard_optimizer's, already checked.
  RuleOptimizer(OptimizerRule rule, std::vector<ParameterGroup> groups, StateStore& states,
                std::vector<OptimizerShard> shards, int parameters, Execution execution,
                uint64_t rounding_seed);

  void step(const StepInput& input) override;
  bool decides_on_device() const override { return rows_ != nullptr && !updates_on_host(); }
  bool has_squares_on_device() const override { return execution_ == Execution::fused_operators; }
  void count_step(std::span<const char> used) override;
  std::vector<std::string> state_names() const override;
  std::vector<WholeState> whole_states() const override { return whole_states_; }
  std::vector<int64_t> parameter_steps() const override { return steps_; }
  void set_parameter_steps(std::span<const int64_t> steps) override;
  AheadUpdates* ahead() override;

 private:
  // AheadUpdates (rule_optimizer_ahead.cpp).
  std::vector<StatePiece> pieces(int unit) const override;
  void announce(std::span<const int> units) override;
  bool is_next(const StatePiece& piece) const override;
  bool is_there(const StatePiece& piece) const override;
  bool skip_to(const StatePiece& piece) override;
  at::Tensor update(const StatePiece& piece, const StepInput& input, const at::Tensor& gradient,
                    bool in_place) override;
  void accept(const StatePiece& piece) override;
  const OptimizerShard& shard_of(int unit) const;
  /// What an update changes beside memory of the parameter.
  std::vector<std::string_view> kinds_ahead(int unit) const;

  using UseSegment = std::function<void(const RuleMemory&, const ShardSegment&, int64_t number)>;
  void create_8bit(const OptimizerShard& shard, int64_t numel, const at::TensorOptions& fp32);
  RuleMemory borrow(const StatePiece& piece) const;
  void step_here(const StepInput& input);

  // Beside a device: shards whose states the host or a disk keeps are updated by the CPU
  // (rule_optimizer_host.cpp).
  bool is_on_host(const OptimizerShard& shard) const {
    return states_.host() != nullptr && shard.tier != Tier::Device;
  }
  bool updates_on_host() const;
  void step_with_host(const StepInput& input);
  /// As for_each_used, of those shards; what stays on the device changes there too if `writes`.
  void for_each_on_host(const StepInput& input, bool whole, bool writes, const UseSegment& use) const;
  /// Digits, as sums_of adds them up over ranks.
  template <class Rule>
  std::vector<double> own_sums_on_host(const Rule& rule, const StepInput& input) const;
  template <class Rule>
  void update_on_host(const Rule& rule, const StepInput& input, std::span<const double> sums) const;

  using PieceOf = std::pair<const OptimizerShard*, StatePiece>;
  /// Of a shard, those that have elements for which `counts` is true.
  template <class Counts>
  std::vector<StatePiece> pieces_with(const OptimizerShard& shard, Counts counts) const;
  /// The pieces of the shards that have a used segment there, in the order of a sweep: of those that are
  /// updated on the host, or of the others.
  std::vector<PieceOf> used_pieces(const StepInput& input, bool whole, bool on_host = false) const;
  void announce_all(std::span<const PieceOf> pieces) const;
  void use_segments(const StepInput& input, const OptimizerShard& shard, const StatePiece& piece,
                    const RuleMemory& memory, const UseSegment& use) const;
  std::vector<std::string_view> updated_kinds() const;
  std::vector<std::string_view> all_kinds() const;
  kernels::Rates rates_of(const ShardSegment& segment, const StepInput& input) const;
  /// Of this step's stochastic rounding of the segment's parameter.
  kernels::RoundingKey rounding_key(const ShardSegment& segment) const;
  /// use(memory, segment, its number among all) for every segment that has elements and is used, or may be
  /// where the device decides. Of states on disk a piece at a time, of a segment what lies in the piece; or
  /// `whole` units, each read as one.
  void for_each_used(const StepInput& input, bool whole, const UseSegment& use) const;
  /// Both phases; the sums of a rule that has some are those of parameter i from i * kSums.
  template <class Rule>
  void run(const Rule& rule, const StepInput& input) const;
  template <class Rule>
  void update_segment(const Rule& rule, const RuleMemory& memory, const ShardSegment& segment,
                      const StepInput& input, const double* sums) const;
  template <class Rule>
  std::vector<double> sums_of(const Rule& rule, const StepInput& input) const;

  // Muon's matrices (muon.cpp).
  StatePiece whole_of(const OptimizerShard& shard) const {
    return {shard.unit, 0, states_.pieces_of(shard.unit, updated_kinds()).back().end};
  }
  at::Tensor matrix_directions(const Muon& rule, const OptimizerShard& shard, const StepInput& input) const;
  void move_matrices(const Muon& rule, const OptimizerShard& shard, const StepInput& input,
                     const at::Tensor& directions) const;
  void step_matrices(const Muon& rule, const StepInput& input) const;

  // Adafactor's passes (adafactor.cpp, adafactor_sums.cpp).
  void create_factors();
  void forget_fresh_factors();
  std::vector<adafactor::Parameter> factored_parameters(const Adafactor& rule, const StepInput& input) const;
  void measure_factored(const StepInput& input, std::vector<adafactor::Parameter>& all) const;
  void sum_squares(const StepInput& input, const std::vector<std::vector<double>>& row_scales,
                   const std::vector<std::vector<double>>& column_scales,
                   std::vector<adafactor::Parameter>& all) const;
  void renew_means(const Adafactor& rule, std::vector<adafactor::Parameter>& all) const;
  void measure_directions(const Adafactor& rule, const StepInput& input,
                          std::vector<adafactor::Parameter>& all) const;
  void step_factored(const Adafactor& rule, const StepInput& input) const;

  // By fused operators: scalars stand in a table on the device, a row a segment (rule_optimizer_fused.cpp).
  void make_rows();
  void step_fused(const StepInput& input) const;
  template <class Rule>
  void fill_rows(const Rule& rule, const StepInput& input) const;
  template <class Rule>
  at::Tensor fused_sums(const Rule& rule, const StepInput& input) const;

  OptimizerRule rule_;
  std::vector<ParameterGroup> groups_;
  bool in_8bit_;
  std::vector<std::string> kinds_;  // of its states in the store
  std::vector<WholeState> whole_states_;
  StateStore& states_;
  std::vector<OptimizerShard> shards_;
  std::vector<size_t> order_;          // of the shards in a sweep
  std::vector<int64_t> first_number_;  // of each shard's segments
  std::vector<int64_t> steps_;         // by parameter
  Execution execution_;
  uint64_t rounding_seed_;
  std::unique_ptr<fused_operators::Rows> rows_;  // of all segments, in order; null for other ways
};

/// Checks new step counts: one for each parameter, none negative. Throws Usage.
void check_steps(std::span<const int64_t> steps, size_t parameters);

}  // namespace zero

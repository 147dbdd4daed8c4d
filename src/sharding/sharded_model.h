#pragma once
// A model cut into shards, with everything that acts on them: residency, gradients, optimizer. What the
// engine and ZeroRedundancyOptimizer have in common.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "optim/gradient_squares.h"
#include "sharding/axes_agreement.h"
#include "sharding/gradients.h"
#include "sharding/model_parameters.h"
#include "sharding/residency.h"
#include "sharding/step_ahead.h"
#include "sharding/step_outcome.h"
#include "sharding/unit.h"
#include "zero/engine_options.h"
#include "zero/step_result.h"

namespace zero::detail {

class ShardedModel {
 public:
  /// Plans, allocates this rank's shards, fills them from the module's values (replaying lazy ones), and
  /// turns the parameters into views of slabs. Collective. `seals`: as Residency::Options.
  ShardedModel(ModelParameters model, const OptimizerSpec& optimizer, const EngineOptions& options, Mesh mesh,
               bool seals = true);
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  struct Place {
    int unit, parameter;
  };
  /// Throws Usage, naming the nearest parameter, for an unknown name. Tied names are known.
  Place place_of(const std::string& name) const;
  Place place_of(int parameter) const { return places_[parameter]; }
  int parameter_count() const { return static_cast<int>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& tensors_of(int parameter) const {
    return model_.tensors.at(names_[parameter]);
  }
  const UnitLayout& layout(int unit) const { return units[unit].layout; }
  std::vector<ShardSegment> segments(int unit) const;
  /// The same by a parameter's index over all units.
  Unit& unit_of(int parameter) { return units[place_of(parameter).unit]; }
  const UnitParameter& spot_of(int parameter) const { return layout_of(place_of(parameter)); }
  std::vector<ShardSegment> segments_of_parameter(int parameter) const;

  /// Backward, as Gradients has it. `lr` and `betas` are what step() will be given, as far as is known: where
  /// the plan says so units are updated with them as soon as their gradients are final.
  void begin_backward(bool boundary, double lr, std::optional<Betas> betas);
  void on_gradient(int parameter, const at::Tensor& gradient);
  /// Sends and updates what is left. Collective.
  void end_backward();
  /// After one that was updated in place the states are lost: require_whole() says so.
  void abandon_backward();
  /// Before values are written by others: nothing of what was updated ahead happens. Throws Usage, naming
  /// `call`, where it has.
  void open_to_writes(std::string_view call);
  /// Throws Usage after a step that failed on its way: states are part old, part new.
  void require_whole() const;
  /// Throws Usage, naming `call`, between a backward in which units were updated in place and its step.
  void require_one_step(std::string_view call) const;
  /// Whether another rank, the first along the axis over which a parameter is cut, has a part of it and the
  /// states that all those ranks keep whole.
  bool has_later_part(const std::string& name) const {
    return !has_later_part_.empty() && has_later_part_[static_cast<size_t>(index_.at(name))] != 0;
  }
  /// Whether the gradient of this step is no more.
  bool has_used_up(int unit) const { return ahead_ && ahead_->has_used_up(unit); }
  /// Whether what was updated in backward allows for no change any more.
  bool is_bound() const { return ahead_ && ahead_->binds(); }
  /// The first parameter of this rank with an infinite gradient among those that are used up; -1: none.
  int overflow_of_used_up(int unit) const;
  /// Pieces of states that were updated in backward, of all steps.
  int64_t pieces_ahead() const { return ahead_ ? ahead_->pieces() : 0; }

  /// Averages over ranks and `accumulation_steps`, clips, updates the shards; clears the gradients. Slabs are
  /// out of date afterwards. settle()s the step before. Collective.
  StepResult step(double lr, std::optional<Betas> betas = {});
  /// Takes over what the last step found out: at its end on the CPU, and on a device, which the host does not
  /// wait for, before the next step and before anything is saved or loaded. Throws Comm if ranks had gathered
  /// units in different orders. Collective.
  void settle();

  /// One parameter of flat shards [shard_numel] (one of every rank), as fp32 on CPU. Collective.
  at::Tensor gather(Place place, const at::Tensor& shard) const;
  double gradient_scale() const;
  double loss_scale = 1;  // that the losses of this step have
  /// What the sums of this step's gradients are divided by to be averages: all ranks' weights, where the
  /// losses are sums; else how many losses there are.
  double divisor() const;
  /// Adds up the ranks' weights; waits for them. Throws Usage where they are nothing. Collective.
  void set_weight(double own);
  void forget_weight() { total_weight_ = 0; }

  Mesh mesh;
  EngineOptions options;
  std::optional<OptimizerRule> rule;  // nothing for a torch optimizer
  bool saves_masters = true;          // checkpoints hold fp32 masters, not the parameters' narrower values
  Plan plan;
  Group all, shard_group, replica_group;  // along "dp": all of it, and its two parts
  Group common_group;                     // the ranks that keep common parameters between them
  StateStore states;                      // of the units, by their index
  std::vector<Unit> units;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::unique_ptr<Residency> residency;
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<ShardOptimizer> optimizer;
  std::vector<OptimizerShard> optimizer_shards;  // of the trainable units, in order
  std::vector<int> trainable;                    // their indices
  std::vector<char> used_everywhere;  // per parameter, after the last step: had a gradient on some rank

 private:
  void open_tiers(const OptimizerSpec& spec);
  void open_disk(const OptimizerSpec& spec);
  void allocate();
  void add_master(Unit& unit);
  void share_out_sums();
  void make_optimizer(const OptimizerSpec& spec);
  const UnitParameter& layout_of(Place place) const {
    return plan.units[place.unit].parameters[place.parameter];
  }
  ShardExchange exchange() const;
  AxisReductions reductions_over(const Group& group) const;
  void find_cuts();
  at::Tensor own_squares(double scale);
  void take_squares_of_leaving();
  at::Tensor add_up_step();
  void update(StepInput input, const at::Tensor& sums);
  void run(StepInput input);
  void forget_ahead();
  void see_used_up(int unit, const at::Tensor& sum);

  double total_weight_ = 0;  // 0: losses are means

  ModelParameters model_;
  std::vector<std::string> names_;  // per parameter index
  std::vector<Place> places_;
  std::vector<int> first_parameter_;  // per unit
  std::unordered_map<std::string, int> index_;
  std::optional<AxesAgreement> axes_;              // there once the plan is
  std::vector<CutParameters> cut_parameters_;      // where the rule needs their sums
  std::vector<char> has_later_part_;               // per parameter: of such, not the first rank's part
  std::vector<OptimizerShard> counted_elsewhere_;  // the trainable units, counting copies alone

  GradientSquares squares_, squares_elsewhere_;  // of gradients that the host has by now

  struct UnderWay {
    std::shared_ptr<StepOutcome> outcome;
    std::vector<int> gathered_units;
    bool is_counted;  // by the optimizer
  };
  std::optional<UnderWay> under_way_;  // a step that was not settled
  bool is_torn_ = false;               // a step failed on its way, or nothing came of one in place
  bool has_stepped_ = false;           // used_everywhere says something
  std::unique_ptr<StepAhead> ahead_;   // where plan.step_in_backward
};

}  // namespace zero::detail

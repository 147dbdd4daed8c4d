#pragma once
// A model cut into shards, with everything that acts on them: residency, gradients, optimizer. What the
// engine and ZeroRedundancyOptimizer have in common.

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/gradients.h"
#include "engine/model_parameters.h"
#include "engine/residency.h"
#include "engine/unit.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace zero::detail {

class ShardedModel {
 public:
  /// Plans, allocates this rank's shards, fills them from the module's values (replaying lazy ones), and
  /// turns the parameters into views of slabs. Collective.
  ShardedModel(ModelParameters model, const OptimizerSpec& optimizer, const EngineOptions& options,
               Mesh mesh);
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  struct Place {
    int unit, parameter;
  };
  /// Throws Usage, naming the nearest parameter, for an unknown name. Tied names are known.
  Place place_of(const std::string& name) const;
  int parameter_count() const { return static_cast<int>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& tensors_of(int parameter) const {
    return model_.tensors.at(names_[static_cast<size_t>(parameter)]);
  }
  const UnitLayout& layout(int unit) const { return units[static_cast<size_t>(unit)].layout; }
  std::vector<ShardSegment> segments(int unit) const;

  /// Averages over ranks and `accumulation_steps`, clips, updates the shards; clears the gradients. Slabs are
  /// out of date afterwards. Throws Comm if ranks gathered units in different orders. Collective.
  StepResult step(double lr, std::optional<Betas> betas = {});

  /// One parameter of flat shards [shard_numel] (one of every rank), as fp32 on CPU. Collective.
  at::Tensor gather(Place place, const at::Tensor& shard) const;
  double gradient_scale() const;

  Mesh mesh;
  EngineOptions options;
  Plan plan;
  Group all, shard_group, replica_group;
  std::vector<Unit> units;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::unique_ptr<Residency> residency;
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<ShardOptimizer> optimizer;
  std::vector<OptimizerShard> optimizer_shards;  // of the trainable units, in order
  std::vector<int> trainable;                    // their indices
  std::vector<char> used_everywhere;  // per parameter, after the last step: had a gradient on some rank

 private:
  void allocate();
  void fill();
  void share_out_norm();
  void take_over_from_replicas(const std::vector<char>& drawn);
  void place_values(int parameter, const at::Tensor& value);
  ElementRange initial_part(int parameter) const;
  void read_values(int parameter);
  void take_over(int parameter);
  void make_optimizer(const OptimizerSpec& spec);

  ModelParameters model_;
  std::vector<std::string> names_;  // per parameter index
  std::vector<Place> places_;
  std::vector<int> first_parameter_;  // per unit
  std::unordered_map<std::string, int> index_;
  std::vector<OptimizerShard> norm_shards_;  // what this rank squares and adds for the gradient norm
};

}  // namespace zero::detail

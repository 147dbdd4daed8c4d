#pragma once
// From the gradients that autograd produces to the summed fp32 gradient of this rank's shard, which is a
// state (kGradientState): the raw sum over ranks and micro-batches, valid at a boundary, until clear().
//
// Two verbs, as a reducer should have: on_gradient() while backward runs, end_backward() when it is over.
// Units are sent in an order that all ranks share (reverse module order first, then the order in which rank 0
// saw them become complete), so ranks whose backward takes another path still issue the same collectives.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sharding/gradient_buckets.h"
#include "sharding/gradient_sums.h"
#include "sharding/replica_reducer.h"
#include "sharding/unit.h"
#include "sharding/unit_gradient.h"
#include "zero/mesh.h"
#include "zero/plan.h"

namespace zero::detail {

struct GradientCounters {
  int64_t buckets = 0;                  // reduce-scatters
  int64_t reduce_scatter_elements = 0;  // full size, padding included
  int64_t all_reduce_elements = 0;      // over replicas, counted twice
};

/// Who wants to know of sums before the backward is over.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  /// A unit's sum over ranks is what the optimizer will be given, unless more comes.
  virtual void sum_is_final(int unit) = 0;
  /// More came after its gradients had been sent: its sum is final when the backward is over.
  virtual void sum_changes(int unit) = 0;
};

class Gradients {
 public:
  /// `units` and `plan` outlive this. Parameters are numbered over all units, in order.
  Gradients(std::vector<Unit>& units, Group shard_group, Group replica_group, Group all, const Plan& plan);
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  /// `boundary`: the optimizer steps after this backward, and `observer`, if not null, hears of its sums.
  void begin_backward(bool boundary, GradientObserver* observer = nullptr);
  /// Trained units in the order in which their sums become final.
  const std::vector<int>& order() const { return order_; }
  /// A parameter's gradient, in its own shape. May come several times in one backward. The tensor is kept
  /// until it is packed.
  void on_gradient(int parameter, const at::Tensor& gradient);
  /// Sends what is left and waits for everything. Collective.
  void end_backward();
  /// Forgets a backward that failed.
  void abandon();

  /// Whether a unit's sum is used up in a backward that has an observer: from sum_is_final() on it is kept in
  /// memory until use_up(), after which nobody sees it, or until let_go_of_sums().
  bool uses_up(int unit) const { return plan_.uses_up_gradient(units_[static_cast<size_t>(unit)].layout); }
  at::Tensor kept_sum(int unit) const { return sums_->kept(unit); }
  void use_up(int unit) { sums_->use_up(unit); }
  void let_go_of_sums() {
    if (sums_) sums_->let_go();
  }

  /// Per parameter: did this rank produce a gradient since clear()?
  const std::vector<char>& used() const { return used_; }
  /// Factor that turns the raw sum into a sum of true gradients (the predivision undone).
  double raw_scale() const { return plan_.gradient_predivide_factor; }
  void clear();

  /// GradientSums::tell_of_leaving, of sums that are final.
  void tell_of_leaving(GradientSums::Leaves leaves);

  GradientCounters counters() const;

 private:
  void make_sums();
  bool keeps_own_sums() const {
    return plan_.placements.gradient == Placement::Partial && plan_.accumulation_steps > 1;
  }
  bool sends_now() const { return plan_.placements.gradient == Placement::Shard || boundary_; }
  UnitGradient& gradient(int unit) { return gradients_[unit]; }
  const std::string& name(int unit) const { return units_[unit].layout.name; }
  void send_complete();
  void send(int unit);
  void add_up_here(int unit, bool late);
  void predivide(const at::Tensor& sum) const;
  void say_final(int unit);
  void agree_on_order();

  std::vector<Unit>& units_;
  Group shard_group_, replica_group_, all_;
  const Plan& plan_;
  std::vector<UnitGradient> gradients_;      // per unit
  std::optional<GradientSums> sums_;         // nothing where nothing is trained
  std::vector<std::pair<int, int>> places_;  // parameter -> unit, index inside
  std::vector<char> used_;

  std::vector<int> order_, complete_order_;  // trained units
  bool order_agreed_ = false;
  size_t next_ = 0;  // in order_
  bool boundary_ = false;
  GradientObserver* observer_ = nullptr;

  GradientBuckets buckets_;
  ReplicaReducer replicas_;
};

}  // namespace zero::detail

#include "plan/traffic.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.h"
#include "zero/error.h"
#include "zero/residency_policy.h"

namespace zero {
namespace {

// Sums of elements that refuse to overflow: many micro-batches of a huge model can.
class Sum {
 public:
  void add(int64_t elements, int64_t times) {
    auto product = checked_multiply(elements, times);
    auto sum = product ? checked_add(value_, *product) : std::nullopt;
    require(sum.has_value(), ErrorKind::Config, "plan", "the traffic of a step exceeds 2^63 elements",
            "check the shapes and the accumulation steps");
    value_ = *sum;
  }
  int64_t value() const { return value_; }

 private:
  int64_t value_ = 0;
};

// How often each unit is gathered in an optimizer step once the schedule is known.
class GatherCount {
 public:
  explicit GatherCount(const Plan& plan)
      : units_(static_cast<int>(plan.units.size())),
        passes_(plan.options.accumulation_steps),
        policy_(options(plan)),
        counts_(plan.units.size()) {}

  std::vector<int64_t> play() {
    play_pass(false);  // records the schedule
    policy_.forget_values();
    std::fill(counts_.begin(), counts_.end(), 0);
    play_carrying_passes(passes_ - 1);
    play_pass(false);
    return counts_;
  }

 private:
  static ResidencyOptions options(const Plan& plan) {
    ResidencyOptions options{
        .unit_bytes = {}, .budget_bytes = plan.budget_bytes, .prefetch_bytes = plan.options.prefetch_bytes};
    for (const UnitLayout& unit : plan.units) options.unit_bytes.push_back(unit.slab_bytes());
    return options;
  }

  // Micro-batches whose end keeps values for the next. When one ends as it began, all later ones are like it.
  void play_carrying_passes(int count) {
    for (int done = 0; done < count; ++done) {
      std::vector<bool> before = resident();
      std::vector<int64_t> counts_before = counts_;
      play_pass(true);
      if (done == 0 || resident() != before) continue;
      for (size_t i = 0; i < counts_.size(); ++i)
        counts_[i] += (counts_[i] - counts_before[i]) * (count - done - 1);
      return;
    }
  }

  // Each unit once forward, once backward in reverse.
  void play_pass(bool values_last) {
    count(policy_.begin_pass(ResidencyPolicy::Pass::Train, values_last));
    for (int unit = 0; unit < units_; ++unit) count(policy_.touch({&unit, 1}));
    count(policy_.trim());
    for (int unit = units_ - 1; unit >= 0; --unit) count(policy_.touch({&unit, 1}));
    count(policy_.end_pass());
  }

  void count(const ResidencyPolicy::Actions& actions) {
    for (int unit : actions.fetch) ++counts_[static_cast<size_t>(unit)];
  }

  std::vector<bool> resident() const {
    std::vector<bool> result(static_cast<size_t>(units_));
    for (int unit = 0; unit < units_; ++unit) result[static_cast<size_t>(unit)] = policy_.resident(unit);
    return result;
  }

  int units_;
  int passes_;
  ResidencyPolicy policy_;
  std::vector<int64_t> counts_;
};

// All-gathers of each unit in a step.
std::vector<int64_t> gathers(const Plan& plan) {
  std::vector<int64_t> counts(plan.units.size());
  if (plan.shard_ranks == 1) return counts;
  if (plan.placements.parameter == Placement::Shard) return GatherCount(plan).play();
  // Replicated parameters: only what the optimizer changed is stale.
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = plan.units[i].trainable ? 1 : 0;
  return counts;
}

}  // namespace

void add_traffic(Plan& plan) {
  Sum all_gather, reduce_scatter, all_reduce, padding, padding_of_shards;
  int64_t reductions = plan.placements.gradient == Placement::Shard ? plan.options.accumulation_steps : 1;
  std::vector<int64_t> gather_counts = gathers(plan);
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const UnitLayout& unit = plan.units[i];
    int64_t unit_padding = unit.padded_numel - unit.numel;
    auto whole = [&](Sum& kind, int64_t times) {
      kind.add(unit.padded_numel, times);
      padding.add(unit_padding, times);
    };
    whole(all_gather, gather_counts[i]);
    if (!unit.trainable) continue;
    if (plan.shard_ranks > 1) whole(reduce_scatter, reductions);
    if (plan.replica_ranks > 1) {
      all_reduce.add(unit.shard_numel, 2);
      padding_of_shards.add(unit_padding, 2);
    }
  }
  padding.add(padding_of_shards.value() / plan.shard_ranks, 1);
  plan.rank.all_gather_elements = all_gather.value();
  plan.rank.reduce_scatter_elements = reduce_scatter.value();
  plan.rank.all_reduce_elements = all_reduce.value();
  plan.rank.padding_elements = padding.value();
  all_gather.add(reduce_scatter.value(), 1);
  all_gather.add(all_reduce.value(), 1);  // the sum, too, is in range
}

}  // namespace zero

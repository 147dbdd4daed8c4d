#include "plan/traffic.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.h"
#include "plan/residency_policy.h"
#include "zero/error.h"

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

// How often each unit is gathered in an optimizer step once the schedule is known: a pass with each unit once
// forward, then once backward in reverse, for every micro-batch.
class GatherCount {
 public:
  explicit GatherCount(const Plan& plan) : units_(static_cast<int>(plan.units.size())) {
    options_ = {.unit_bytes = {}, .budget_bytes = plan.budget_bytes, .prefetch_bytes = plan.prefetch_bytes};
    for (const UnitLayout& unit : plan.units) {
      const bool stays = plan.shard_ranks == 1 && !plan.is_away(unit);
      options_.unit_bytes.push_back(stays ? 0 : unit.slab_bytes());
      options_.lasting.push_back(!unit.trainable);
      options_.persistent.push_back(unit.persistent);
    }
  }

  /// In the middle of a long pass a unit is always needed again within the next micro-batch, so that
  /// decisions do not depend on how many follow. Where one micro-batch ends as an earlier one did, those in
  /// between repeat: a shorter pass is played, and repetitions are added.
  std::vector<int64_t> of_step(int64_t micro_batches) const {
    for (int64_t length = 32; length < micro_batches; length *= 2) {
      const int64_t period = period_of(play(length).ends);
      if (period == 0) continue;
      const int64_t played = length - (length + period - micro_batches % period) % period;
      std::vector<int64_t> counts = play(played).counts;
      const std::vector<int64_t> longer = play(played + period).counts;
      for (size_t i = 0; i < counts.size(); ++i)
        counts[i] += (longer[i] - counts[i]) * ((micro_batches - played) / period);
      return counts;
    }
    return play(micro_batches).counts;
  }

 private:
  using Held = std::vector<std::pair<bool, bool>>;  // per unit: resident, and fetched ahead
  struct Played {
    std::vector<int64_t> counts;  // per unit
    std::vector<Held> ends;       // of each micro-batch
  };

  Played play(int64_t micro_batches) const {
    ResidencyPolicy policy(options_);
    // The first records the schedule, the second leaves what lasts as all later ones find it.
    for (int pass = 0; pass < 2; ++pass) {
      play(policy, micro_batches);
      policy.forget_values();
    }
    return play(policy, micro_batches);
  }

  Played play(ResidencyPolicy& policy, int64_t micro_batches) const {
    Played played{.counts = std::vector<int64_t>(options_.unit_bytes.size()), .ends = {}};
    const auto count = [&](const ResidencyPolicy::Actions& actions) {
      for (int unit : actions.fetch) ++played.counts[unit];
    };
    count(policy.begin_pass(ResidencyPolicy::Pass::Train));
    for (int64_t i = 0; i < micro_batches; ++i) {
      for (int unit = 0; unit < units_; ++unit) count(policy.touch({&unit, 1}));
      count(policy.trim());
      for (int unit = units_ - 1; unit >= 0; --unit) count(policy.touch({&unit, 1}));
      count(policy.trim());
      Held held;
      for (int unit = 0; unit < units_; ++unit)
        held.emplace_back(policy.resident(unit), policy.is_ahead(unit));
      played.ends.push_back(std::move(held));
    }
    count(policy.end_pass());
    return played;
  }

  // After how many micro-batches things repeat, well before the end; 0: not yet.
  static int64_t period_of(const std::vector<Held>& ends) {
    for (size_t second = 1; second < ends.size() / 3; ++second)
      for (size_t first = second; first-- > 0;)
        if (ends[first] == ends[second]) return static_cast<int64_t>(second - first);
    return 0;
  }

  int units_;
  ResidencyOptions options_;
};

}  // namespace

std::vector<int64_t> gathers_of_step(const Plan& plan) {
  std::vector<int64_t> counts(plan.units.size());
  const bool some_away = std::any_of(plan.units.begin(), plan.units.end(),
                                     [&](const UnitLayout& unit) { return plan.is_away(unit); });
  if (plan.shard_ranks == 1 && !some_away) return counts;
  if (plan.placements.parameter == Placement::Shard)
    return GatherCount(plan).of_step(plan.accumulation_steps);
  // Replicated parameters: only what the optimizer changed is stale.
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = plan.units[i].trainable ? 1 : 0;
  return counts;
}

void add_traffic(Plan& plan) {
  Sum all_gather, reduce_scatter, all_reduce, padding, padding_of_shards;
  int64_t reductions = plan.placements.gradient == Placement::Shard ? plan.accumulation_steps : 1;
  const std::vector<int64_t> gather_counts = gathers_of_step(plan);
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const UnitLayout& unit = plan.units[i];
    int64_t unit_padding = unit.padded_numel - unit.numel;
    auto whole = [&](Sum& kind, int64_t times) {
      kind.add(unit.padded_numel, times);
      padding.add(unit_padding, times);
    };
    if (plan.shard_ranks > 1) whole(all_gather, gather_counts[i]);
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

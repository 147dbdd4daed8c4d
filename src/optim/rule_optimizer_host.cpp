// Steps beside a device of what the host or a disk keeps: ZeRO-Offload's. The CPU's kernels update it a piece
// at a time, while the device updates what it keeps itself.
#include <algorithm>
#include <array>

#include "optim/host_sweep.h"
#include "optim/kernel_passes.h"
#include "optim/rule_optimizer.h"

namespace zero {

bool RuleOptimizer::updates_on_host() const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [this](const OptimizerShard& shard) { return is_on_host(shard); });
}

void RuleOptimizer::for_each_on_host(const StepInput& input, bool whole, bool writes,
                                     const UseSegment& use) const {
  const auto pieces = used_pieces(input, whole, /*on_host=*/true);
  std::vector<StatePiece> sweep;
  for (const auto& [shard, piece] : pieces) sweep.push_back(piece);
  static constexpr std::array kGradient{kGradientState};
  if (!whole) states_.announce(sweep, updated_kinds(), kGradient);
  HostSweep host(states_, *states_.host(), sweep, updated_kinds(), writes);
  for (const auto& [shard, piece] : pieces) {
    use_segments(input, *shard, piece, host.next(), use);
    host.done();
  }
  host.finish();
  // The next step's, unless it has yet to write some.
  const bool writes_first = std::any_of(sweep.begin(), sweep.end(), [&](const StatePiece& piece) {
    return states_.is_on_disk(piece.unit, kGradientState);
  });
  if (!whole && !writes_first) states_.announce(sweep, updated_kinds(), kGradient);
}

// Digits of exact sums, [parameters, kSums, kDigits].
template <class Rule>
std::vector<double> RuleOptimizer::own_sums_on_host(const Rule& rule, const StepInput& input) const {
  using Arithmetic = kernels::Arithmetic<Rule>;
  constexpr size_t kNumbers = size_t{Arithmetic::kSums} * kernels::kDigits;
  std::vector<double> digits(steps_.size() * kNumbers);
  for_each_on_host(input, /*whole=*/true, /*writes=*/false,
                   [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
                     const auto scalars = Arithmetic::scalars(rule, rates_of(segment, input));
                     const auto over = [&](int64_t begin, int64_t end, double* into) {
                       if (begin < end) kernel_passes::direction<Rule>(memory, begin, end, scalars, into);
                     };
                     double elsewhere[kNumbers] = {};  // what another rank counts
                     over(segment.begin, segment.counted_begin, elsewhere);
                     over(segment.counted_begin, segment.counted_end, &digits[segment.parameter * kNumbers]);
                     over(segment.counted_end, segment.end, elsewhere);
                   });
  return digits;
}

template <class Rule>
void RuleOptimizer::update_on_host(const Rule& rule, const StepInput& input,
                                   std::span<const double> sums) const {
  using Arithmetic = kernels::Arithmetic<Rule>;
  for_each_on_host(input, /*whole=*/Arithmetic::kSums > 0, /*writes=*/true,
                   [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
                     auto scalars = Arithmetic::scalars(rule, rates_of(segment, input));
                     if constexpr (Arithmetic::kSums > 0)
                       scalars = Arithmetic::with_sums(scalars, &sums[segment.parameter * Arithmetic::kSums]);
                     if (in_8bit_)
                       return kernel_passes::update_narrow<Rule>(memory, segment, scalars,
                                                                 kernels::RoundingKey());
                     kernel_passes::update<Rule>(memory, segment, scalars);
                   });
}

// The device's work is queued first and goes on meanwhile. Sums of whole parameters are added up over the
// ranks once, the device's and the host's together.
void RuleOptimizer::step_with_host(const StepInput& input) {
  const auto run = [&]<class Rule>(const Rule& rule) {
    constexpr size_t kSums = kernels::Arithmetic<Rule>::kSums;
    std::vector<double> totals(steps_.size() * kSums);
    StepInput here = input;
    if constexpr (kSums > 0)
      here.sum_over_ranks = [&, own = own_sums_on_host(rule, input)](std::span<double> digits) {
        for (size_t i = 0; i < digits.size(); ++i) digits[i] += own[i];
        if (input.sum_over_ranks) input.sum_over_ranks(digits);
        for (size_t i = 0; i < totals.size(); ++i)
          totals[i] = kernels::total_of(&digits[i * kernels::kDigits]);
      };
    const bool all_on_host = std::all_of(shards_.begin(), shards_.end(),
                                         [this](const OptimizerShard& shard) { return is_on_host(shard); });
    if (!all_on_host) step_here(here);
    if (all_on_host && kSums > 0) {
      std::vector<double> none(steps_.size() * kSums * kernels::kDigits);
      here.sum_over_ranks(none);
    }
    update_on_host(rule, input, totals);
  };
  std::visit(run, rule_);
}

}  // namespace zero

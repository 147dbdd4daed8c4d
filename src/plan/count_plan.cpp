// Model states from a bare count: the ZeRO paper's accounting, and what this engine keeps beside it.
#include <string>

#include "base/checked.h"
#include "zero/error.h"
#include "zero/placement.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

constexpr int64_t kMostParameters = int64_t{1} << 56;

// Bytes of `parameters` in one kind of state, where it is whole on every rank or an equal part of it.
class Share {
 public:
  Share(int64_t parameters, int ranks) : whole_(parameters), shard_((parameters - 1) / ranks + 1) {}
  int64_t bytes(bool sharded, int64_t each) const { return (sharded ? shard_ : whole_) * each; }

 private:
  int64_t whole_, shard_;
};

CountStage bytes_of(const CountOptions& options, int stage) {
  Placements placements = placements_for(stage);
  Share share(options.parameters, options.ranks);
  bool gradient_sharded = placements.gradient == Placement::Shard;
  bool optimizer_sharded = placements.optimizer == Placement::Shard;
  bool accumulates_whole = !gradient_sharded && (options.accumulation_steps > 1 || !optimizer_sharded);
  CountStage result{.stage = stage};
  result.parameter_bytes = share.bytes(placements.parameter == Placement::Shard, options.parameter_bytes);
  result.gradient_bytes = share.bytes(gradient_sharded, options.gradient_bytes);
  result.optimizer_bytes = share.bytes(optimizer_sharded, options.optimizer_bytes);
  result.engine_optimizer_bytes = share.bytes(optimizer_sharded, options.engine_optimizer_bytes);
  result.engine_gradient_bytes = share.bytes(!accumulates_whole, options.engine_gradient_bytes);
  return result;
}

// In units of the model size, section 7 of the paper.
int64_t traffic_of(const CountOptions& options, const Placements& placements) {
  if (options.ranks == 1) return 0;
  int64_t steps = options.accumulation_steps;
  int64_t reductions = placements.gradient == Placement::Shard ? steps : 1;
  int64_t gathers = placements.parameter == Placement::Shard ? 2 * steps : 1;  // an all-reduce is both halves
  auto traffic = checked_multiply(options.parameters, reductions + gathers);
  require(traffic.has_value(), ErrorKind::Config, "plan", "the traffic of a step exceeds 2^63 elements");
  return *traffic;
}

// The largest count whose states fit: they grow with it, so halve the interval.
template <typename Bytes>
int64_t largest(CountOptions options, int stage, Bytes bytes) {
  int64_t fits = 0, too_large = kMostParameters + 1;
  while (too_large - fits > 1) {
    options.parameters = fits + (too_large - fits) / 2;
    (bytes(bytes_of(options, stage)) <= *options.memory_bytes ? fits : too_large) = options.parameters;
  }
  return fits;
}

void check(const CountOptions& options) {
  auto in_range = [](int64_t value, int64_t least, int64_t most, const char* name) {
    require(value >= least && value <= most, ErrorKind::Config, name,
            "expected " + std::to_string(least) + " to " + std::to_string(most) + ", got " +
                std::to_string(value));
  };
  in_range(options.parameters, 1, kMostParameters, "parameters");
  in_range(options.ranks, 1, std::numeric_limits<int>::max(), "ranks");
  in_range(options.accumulation_steps, 1, std::numeric_limits<int>::max(), "accumulation_steps");
  in_range(options.parameter_bytes, 1, 8, "parameter_bytes");
  in_range(options.gradient_bytes, 1, 8, "gradient_bytes");
  in_range(options.engine_gradient_bytes, 1, 8, "engine_gradient_bytes");
  in_range(options.optimizer_bytes, 0, 64, "optimizer_bytes");
  in_range(options.engine_optimizer_bytes, 0, 64, "engine_optimizer_bytes");
}

}  // namespace

CountPlan plan_from_count(const CountOptions& options) {
  check(options);
  CountPlan plan{.options = options, .stages = {}};
  for (int stage = 0; stage < kStages; ++stage) {
    CountStage& row = plan.stages[stage];
    row = bytes_of(options, stage);
    row.traffic_elements = traffic_of(options, placements_for(stage));
    if (!options.memory_bytes) continue;
    row.largest_parameters = largest(options, stage, [](const CountStage& s) { return s.state_bytes(); });
    row.engine_largest_parameters =
        largest(options, stage, [](const CountStage& s) { return s.engine_state_bytes(); });
  }
  return plan;
}

}  // namespace zero

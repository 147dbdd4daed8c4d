// Simulations against the plan and against themselves.
#include "simulate/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/expect_error.h"
#include "support/simulated_job.h"
#include "zero/trace.h"

namespace zero::simulate::testing {
namespace {

// Where all units stay resident, as the order of their use, of which the plan knows no more than each once
// forward and once backward, does not count.
TEST(Simulate, SendsWhatThePlanSays) {
  for (const int stage : {0, 1, 2, 3}) {
    const Config config = small_config(
        64, stage, R"({"model": {"type": "llama", "mlp_width": 512}, "residency": {"budget": 1000000000}})");
    const Simulation found = simulate(config, options_on_plain(64, 17));
    const RankPlan& rank = found.step.plan.rank;
    EXPECT_EQ(found.step.all_gather_elements, rank.all_gather_elements) << stage;
    EXPECT_EQ(found.step.reduce_scatter_elements, rank.reduce_scatter_elements) << stage;
    // Each piece of an all-reduce is rounded up to a multiple of the ranks.
    EXPECT_GE(found.step.all_reduce_elements, rank.all_reduce_elements) << stage;
    EXPECT_LE(static_cast<double>(found.step.all_reduce_elements),
              1.001 * static_cast<double>(rank.all_reduce_elements))
        << stage;
  }
}

TEST(Simulate, HoldsWhatThePlanSays) {
  const Simulation found = simulate(small_config(8, 3), options_on_plain(8, 3));
  const RankPlan& rank = found.step.plan.rank;
  auto used = found.step.memory.used_by_purpose;
  const int64_t slack = 512 * static_cast<int64_t>(found.step.plan.units.size());  // whole blocks
  const auto expect_near = [&](const char* purpose, int64_t bytes) {
    EXPECT_GE(used[purpose], bytes) << purpose;
    EXPECT_LE(used[purpose], bytes + 2 * slack) << purpose;
  };
  expect_near("shards", rank.parameter_bytes);
  expect_near("master", rank.master_bytes);
  expect_near("optimizer states", rank.optimizer_bytes);
  EXPECT_LE(found.step.memory.peak_by_purpose.at("parameters"), rank.gather_window_bytes + slack);
}

TEST(Simulate, SaysTheSameTwice) {
  const Config config = small_config(1024, 3);
  SimulateOptions options = options_on_plain(1024, 17);
  const std::string first = to_json(simulate(config, options), options);
  EXPECT_EQ(first, to_json(simulate(config, options), options));
  const nlohmann::json told = nlohmann::json::parse(first);
  EXPECT_EQ(told["ranks"], 1024);
  EXPECT_GT(told["step_ns"], 0);
  EXPECT_GE(told["communication_ns"], told["exposed_ns"]);
  options.steps = 4;
  EXPECT_EQ(nlohmann::json::parse(to_json(simulate(config, options), options))["kernels_ns"],
            told["kernels_ns"])
      << "steady";
}

TEST(Simulate, FetchesEachUnitBeforeItIsUsed) {
  const Simulation found = simulate(small_config(8, 3), options_on_plain(8, 0));
  ASSERT_FALSE(found.schedule.empty());
  std::map<std::string, bool> resident;
  int64_t fetched = 0;
  for (const Touch& touch : found.schedule) {
    for (const std::string& unit : touch.evicted) resident[unit] = false;
    for (const std::string& unit : touch.fetched) resident[unit] = true;
    fetched += static_cast<int64_t>(touch.fetched.size());
    EXPECT_TRUE(resident[touch.unit]) << touch.unit;
  }
  EXPECT_EQ(fetched, found.step.traffic.at(Operation::AllGather).calls);
}

TEST(Simulate, ASlowerNetworkExposesMore) {
  SimulateOptions fast = options_on_plain(16, 3), slow = fast;
  slow.network = network_from_text(
      R"({"ranks_per_host": 4, "between_hosts": {"bytes_per_s": 1e8, "latency_ns": 50000}})", "net",
      fast.network);
  EXPECT_EQ(slow.network.ranks_per_host, 4);
  EXPECT_EQ(slow.network.within_host.bytes_per_s, fast.network.within_host.bytes_per_s);
  const Config config = small_config(16, 3);
  const StepFigures quick = simulate(config, fast).step, waiting = simulate(config, slow).step;
  EXPECT_GT(waiting.exposed_ns, quick.exposed_ns);
  EXPECT_GT(waiting.step_ns, quick.step_ns);
  EXPECT_EQ(waiting.compute_ns, quick.compute_ns);
}

TEST(Simulate, TraceHoldsTheLastStep) {
  SimulateOptions options = options_on_plain(8, 1);
  options.trace = true;
  const Simulation found = simulate(small_config(8, 3), options);
  const nlohmann::json trace = nlohmann::json::parse(trace_document({&found.trace_events, 1}));
  double first = 1e300, last = 0;
  int64_t gathers = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    first = std::min(first, event["ts"].get<double>());
    last = std::max(last, event["ts"].get<double>() + event["dur"].get<double>());
    gathers += event["name"] == "all_gather";
  }
  EXPECT_GE(gathers, found.step.traffic.at(Operation::AllGather).calls);
  EXPECT_LE(last - first, found.step.step_ns / 1000);
  EXPECT_GT(last - first, 0.9 * found.step.step_ns / 1000);
}

TEST(Simulate, RecomputesWhatTheConfigurationSays) {
  const auto activations = [](const char* patch) {
    const Simulation found = simulate(small_config(2, 3, patch), options_on_plain(2, 0));
    return std::pair(found.step.memory.peak_by_purpose.at("activations"), found.step.kernels);
  };
  const auto kept = activations("{}");
  const auto again = activations(R"({"activation_checkpointing": {"recompute": "all"}})");
  EXPECT_LT(again.first, kept.first);
  EXPECT_GT(again.second, kept.second);
}

TEST(Simulate, CountsWhatPassesTheHostsLink) {
  const auto simulated = [](const std::string& offload) {
    const std::string patch = R"({"residency": {"budget": 1000000000})" + offload + "}";
    return simulate(small_config(4, 3, patch.c_str()), options_on_plain(4, 1)).step;
  };
  const StepFigures here = simulated("");
  for (const char* const parts :
       {R"("optimizer": "host")", R"("optimizer": "host", "parameter": "host", "gradient": "host")",
        R"("parameter": "host")"}) {
    const StepFigures away = simulated(std::string(R"(, "offload": {)") + parts + "}");
    const RankPlan& plan = away.plan.rank;
    EXPECT_GT(plan.step_up_bytes, 0) << parts;
    // Tables of scalars, tokens and the like go too.
    constexpr double kSmall = 32 << 10;
    EXPECT_NEAR(away.copied_in_bytes - here.copied_in_bytes, static_cast<double>(plan.step_up_bytes), kSmall)
        << parts;
    EXPECT_NEAR(away.copied_out_bytes - here.copied_out_bytes, static_cast<double>(plan.step_down_bytes),
                kSmall)
        << parts;
    EXPECT_GT(static_cast<double>(plan.step_up_bytes), 4 * kSmall) << "otherwise it says nothing";
    EXPECT_GT(away.copies_ns, here.copies_ns) << parts;
    EXPECT_LT(away.memory.peak_bytes, here.memory.peak_bytes) << parts;
    EXPECT_EQ(away.all_gather_elements, here.all_gather_elements) << parts;
  }
}

TEST(Simulate, RefusesWhatMakesNoSense) {
  const Config automatic =
      small_config(2, 3, R"({"activation_checkpointing": {"recompute": "auto", "memory": 1000000}})");
  EXPECT_ERROR(simulate(automatic, options_on_plain(2, 0)), Unsupported, "auto chooses by measured times");
  const Config config = small_config(4, 3);
  EXPECT_ERROR(simulate(config, options_on_plain(4, 4)), Config,
               "--rank: expected 0 to 3 of the 4 ranks, got 4");
  EXPECT_ERROR(simulate(config, options_on_plain(4, -1)), Config, "got -1");
  SimulateOptions small = options_on_plain(4, 0);
  small.memory_bytes = 4 << 20;
  EXPECT_ERROR(simulate(config, small), Config, "rank 0 of 4: virtual:0 is out of memory");
  EXPECT_ERROR(simulate(config, small), Config, "; held: ");
}

TEST(Simulate, RefusesNetworksThatMakeNoSense) {
  const auto read = [](const char* text) { return network_from_text(text, "net.json", {}); };
  EXPECT_ERROR(read("{"), Corrupt, "net.json");
  EXPECT_ERROR(read(R"({"ranks": 8})"), Corrupt, "unknown member \"ranks\"");
  EXPECT_ERROR(read(R"({"ranks_per_host": 0})"), Corrupt,
               "ranks_per_host: expected a whole number from 1 on");
  EXPECT_ERROR(read(R"({"within_host": {"bytes_per_s": -1, "latency_ns": 0}})"), Corrupt,
               "within_host.bytes_per_s: expected a number above 0");
  EXPECT_ERROR(read(R"({"between_hosts": {"bytes_per_s": 1e9}})"), Corrupt, "between_hosts.latency_ns");
}

}  // namespace
}  // namespace zero::simulate::testing

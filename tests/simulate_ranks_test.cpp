// A simulated rank against a real one on virtual devices: the same memory, traffic and time.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "support/simulated_job.h"
#include "support/virtual_ranks.h"

namespace zero::simulate::testing {
namespace {

using namespace zero::testing;
using virtual_device::testing::own_devices;

/// What does not depend on who tells it; `workspace` is what CPU kernels take for themselves.
nlohmann::json told_of(const StepFigures& step) {
  nlohmann::json told = {{"step_ns", step.step_ns},
                         {"compute_ns", step.compute_ns},
                         {"communication_ns", step.communication_ns},
                         {"exposed_ns", step.exposed_ns},
                         {"copies_ns", step.copies_ns},
                         {"kernels", step.kernels},
                         {"flops", step.flops},
                         {"host_reads", step.host_reads},
                         {"used_before", step.used_before_bytes},
                         {"used", step.memory.used_by_purpose},
                         {"order", step.order}};
  for (const auto& [operation, sum] : step.traffic)
    told["traffic"][std::string(to_string(operation))] = {sum.calls, sum.elements, sum.bytes};
  return told;
}

nlohmann::json told_in_full(const StepFigures& step) {
  nlohmann::json told = told_of(step);
  double peak = 0;
  for (const auto& [purpose, bytes] : step.memory.peak_by_purpose) peak += static_cast<double>(bytes);
  told["peak"] = peak;
  return told;
}

/// Of every rank.
std::vector<nlohmann::json> run_for_real(const Config& config, int ranks) {
  const auto results = run_ranks(
      ranks,
      [&](Mesh mesh) {
        hand_back(told_in_full(run_steps(config, mesh, own_devices(), {.steps = 0, .without_values = false}))
                      .dump());
        virtual_device::testing::expect_no_faults();
      },
      virtual_device::testing::on_virtual_devices());
  std::vector<nlohmann::json> told;
  for (const RankResult& result : results) told.push_back(nlohmann::json::parse(result.bytes));
  return told;
}

// In a child: it starts threads, and a program with threads starts no ranks.
nlohmann::json simulate_apart(const Config& config, int ranks, int rank) {
  const auto results = run_ranks(1, [&](const Mesh&) {
    hand_back(told_in_full(simulate(config, options_on_plain(ranks, rank)).step).dump());
  });
  return nlohmann::json::parse(results[0].bytes);
}

double taken_from(nlohmann::json& told, const char* figure) {
  const double value = told.at(figure).get<double>();
  told.erase(figure);
  return value;
}

struct Case {
  int ranks, stage;
  const char* patch = "{}";  // of the configuration
};
void PrintTo(const Case& of, std::ostream* out) {
  *out << of.ranks << " ranks, stage " << of.stage << ", " << of.patch;
}

class SimulatedRank : public ::testing::TestWithParam<Case> {};

// All but waiting for others: a real rank waits for the slowest, a simulated one takes all to be like itself.
TEST_P(SimulatedRank, IsTheRealOne) {
  const auto& [ranks, stage, patch] = GetParam();
  const Config config = small_config(ranks, stage, patch);
  std::vector<nlohmann::json> real = run_for_real(config, ranks);
  double slowest_ns = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    nlohmann::json told = simulate_apart(config, ranks, rank);
    slowest_ns = std::max(slowest_ns, taken_from(told, "step_ns"));
    EXPECT_NEAR(taken_from(told, "peak") / taken_from(real[rank], "peak"), 1, 0.01)
        << "kernels' temporaries come and go at other moments";
    taken_from(told, "exposed_ns");
    taken_from(real[rank], "exposed_ns");
    const double real_ns = taken_from(real[rank], "step_ns");
    EXPECT_EQ(told, real[rank]) << "to the last digit";
    if (rank + 1 < ranks) continue;
    if (ranks == 1)
      EXPECT_EQ(slowest_ns, real_ns) << "to the last digit";
    else  // now one, now another is the slowest
      EXPECT_NEAR(slowest_ns / real_ns, 1, ranks == 2 ? 0.001 : 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SimulatedRank,
    ::testing::Values(
        Case{1, 0}, Case{1, 3}, Case{2, 0}, Case{2, 1}, Case{2, 2}, Case{2, 3}, Case{4, 3},
        Case{4, 2, R"({"parallel": {"shard_group": 2}})"},
        Case{2, 3, R"({"bf16": {"enabled": false}, "zero_optimization": {"overlap_comm": false}})"},
        Case{2, 3, R"({"optimizer": {"type": "LAMB"}, "model": {"dropout": 0.1}})"},
        Case{2, 3, R"({"model": {"type": "llama", "kv_heads": 2, "mlp_width": 512}})"},
        Case{2, 3, R"({"model": {"type": "gpt_neox"}})"},
        Case{2, 3, R"({"lora": {"rank": 4, "targets": ["*c_attn"]}})"},
        Case{2, 3, R"({"model": {"dropout": 0.1}, "activation_checkpointing": {"recompute": "all"}})"}),
    [](const auto& info) {
      return "ranks" + std::to_string(info.param.ranks) + "stage" + std::to_string(info.param.stage) +
             "case" + std::to_string(info.index);
    });

}  // namespace
}  // namespace zero::simulate::testing

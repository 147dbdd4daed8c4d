// `zero bench step`: what its records hold. Not how fast it is, which bench/ tells.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/program.h"

namespace zero {
namespace {

using nlohmann::json;
using testing::Program;
using testing::ProgramResult;

ProgramResult bench_step(std::vector<std::string> arguments) {
  std::vector<std::string> all = {ZERO_TOOL, "bench", "step", "--model", "tiny", "--steps", "4"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  for (const auto& [option, value] : {std::pair{"--seq", "16"}, std::pair{"--dtype", "fp32"}})
    if (std::find(arguments.begin(), arguments.end(), option) == arguments.end())
      all.insert(all.end(), {option, value});
  return Program(all, {}).wait();
}

json record_of(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const ProgramResult result = bench_step(std::move(arguments));
  EXPECT_EQ(result.exit, 0) << result.all();
  return json::parse(result.output);
}

TEST(BenchStep, WritesOneRecordOfAllRanks) {
  const json record = record_of({"--stage", "2", "--ranks", "2"});
  EXPECT_EQ(record["peer"], "zero.cpp");
  EXPECT_EQ(record["mode"], "zero2");
  EXPECT_EQ(record["ranks"], 2);
  EXPECT_EQ(record["peak_rss_mib"].size(), 2U);
  EXPECT_GT(record["step_s"], 0);
  EXPECT_LE(record["step_s_min"], record["step_s"]);
  EXPECT_FALSE(record.contains("alone_s"));
}

TEST(BenchStep, OthersTakeTheirTurnAndLeaveTheStepsAsTheyAre) {
  const json alone = record_of({"--alone"}), plain = record_of({"--stage", "3"}),
             beside = record_of({"--stage", "3", "--beside", "alone,libtorch,0"});
  EXPECT_EQ(alone["mode"], "alone");
  EXPECT_FALSE(alone.contains("plan_mib"));
  for (const char* field : {"alone_s", "alone_s_min", "libtorch_s", "stage_0_s", "stage_0_s_min"})
    EXPECT_GT(beside.value(field, 0.0), 0) << field;
  for (const char* field : {"loss_first", "loss", "plan_mib"})
    EXPECT_EQ(beside[field], plain[field]) << field;
  EXPECT_EQ(alone["loss_first"], plain["loss_first"]);
  EXPECT_NE(alone["loss"], plain["loss"]) << "alone trains nothing";
}

// The same losses, with less kept from forward to backward.
TEST(BenchStep, RecomputesBlocksOnDemand) {
  const json all = record_of({"--recompute", "all", "--beside", "kept", "--seq", "128", "--ranks", "1"}),
             plain = record_of({"--seq", "128", "--ranks", "1"});
  EXPECT_EQ(all["loss"], plain["loss"]);
  EXPECT_EQ(all["recompute"], "all");
  EXPECT_GT(all.value("kept_s", 0.0), 0);
  EXPECT_LT(all["kept_mib"], all["kept_all_mib"]);
  EXPECT_EQ(all["kept_all_mib"], plain["kept_mib"]);
  const ProgramResult refused = bench_step({"--recompute", "auto", "--ranks", "1"});
  EXPECT_NE(refused.exit, 0);
  EXPECT_NE(refused.all().find("auto needs the bytes"), std::string::npos) << refused.all();
}

// Where activations and the loss are the peak: a small model and many tokens.
TEST(BenchStep, ThePlanCountsActivations) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const json few = record_of({"--dtype", dtype}),
               many = record_of({"--dtype", dtype, "--batch", "16", "--seq", "128"});
    const double planned = many["plan_mib"].get<double>() + many["process_mib"].get<double>();
    EXPECT_GT(many["plan_mib"], 3 * few["plan_mib"].get<int64_t>()) << dtype;
    EXPECT_NEAR(many["peak_rss_mib"][0].get<double>() / planned, 1, 0.08) << many;
  }
}

// The same training to rounding, by other kernels.
TEST(BenchStep, OnLibTorchsOperators) {
  const json ours = record_of({"--dtype", "bf16"}),
             libtorchs = record_of({"--dtype", "bf16", "--operators", "libtorch"});
  EXPECT_EQ(libtorchs["operators"], "libtorch");
  EXPECT_NEAR(libtorchs["loss"].get<double>(), ours["loss"].get<double>(), 0.02);
  if (ours["operators"] == "ours") {
    EXPECT_NE(libtorchs["loss"], ours["loss"]);
  }
}

TEST(BenchStep, SaysInWordsWhatTookTurns) {
  const ProgramResult result = bench_step({"--beside", "1"});
  EXPECT_EQ(result.exit, 0) << result.all();
  EXPECT_NE(result.output.find("zero3 tiny: "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("in turn with it, stage 1: "), std::string::npos) << result.output;
}

// The same losses to rounding, whatever the ranks share.
TEST(BenchStep, SharesLayersAndAPipeline) {
  for (const bool plain : {false, true}) {
    const auto of = [&](std::vector<std::string> mesh) {
      mesh.insert(mesh.end(), {"--grad-accum", "2", "--stage", "2"});
      if (plain) mesh.emplace_back("--plain");
      return record_of(mesh);
    };
    const json one = of({"--ranks", "1"}), tensor = of({"--ranks", "2", "--tensor", "2", "--sequence"}),
               pipeline = of({"--ranks", "2", "--pipeline", "2", "--schedule", "zb-h1"});
    for (const json& record : {tensor, pipeline}) {
      EXPECT_NEAR(record["loss_first"].get<double>(), one["loss_first"].get<double>(), 2e-4) << record;
      EXPECT_NEAR(record["loss"].get<double>(), one["loss"].get<double>(), 2e-4) << record;
      EXPECT_EQ(record["ranks"], 2);
    }
    EXPECT_EQ(tensor["tensor"], 2);
    EXPECT_EQ(pipeline["schedule"], "zb-h1");
    EXPECT_EQ(pipeline["stage_blocks"].size(), 2U);
  }
}

TEST(BenchStep, RefusesWhatItCannotTime) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--beside", "0,0"},
                                             {"--beside", "4"},
                                             {"--operators", "theirs"},
                                             {"--beside", "0", "--alone"},
                                             {"--ranks", "3", "--tensor", "2"},
                                             {"--tensor", "3", "--ranks", "3"},
                                             {"--sequence", "--ranks", "2"},
                                             {"--alone", "--pipeline", "2", "--ranks", "2"},
                                             {"--warmup", "4"}}) {
    const ProgramResult result = bench_step(arguments);
    EXPECT_NE(result.exit, 0) << arguments[1];
    EXPECT_NE(result.error.find(arguments[0]), std::string::npos) << result.all();
  }
}

// States that do not fit a rank's memory go to the disk, and the peak is what the plan says.
TEST(BenchStep, KeepsToTheMemoryItIsGiven) {
  const std::vector<std::string> usual{"--stage", "2", "--ranks", "1", "--seq", "64"};
  const json all = record_of(usual);
  for (const double part : {0.9, 0.75}) {
    std::vector<std::string> arguments = usual;
    const int64_t budget = static_cast<int64_t>(all["plan_mib"].get<double>() * part);
    arguments.insert(arguments.end(), {"--memory", std::to_string(budget << 20)});
    const json record = record_of(arguments);
    EXPECT_EQ(record["loss"], all["loss"]);
    EXPECT_LE(record["plan_mib"], budget);
    EXPECT_GT(record["tier_mib"]["disk"], 0.0);
    EXPECT_NE(record["placement"].get<std::string>().find("On disk: "), std::string::npos) << record;
    // The ring is memory of the process beside tensors.
    const double planned = record["plan_mib"].get<double>() + record["process_mib"].get<double>() -
                           record["ring_mib"].get<double>();
    EXPECT_NEAR(record["peak_rss_mib"][0].get<double>() / planned, 1, 0.05) << record;
  }
}

}  // namespace
}  // namespace zero

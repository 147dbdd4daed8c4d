// `zero simulate`, run as its users run it.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/program.h"
#include "support/temporary_directory.h"

namespace zero {
namespace {

constexpr const char* kSimulatedRun = R"({
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
  "model": {"vocab_size": 2000, "context_length": 64, "layers": 3, "width": 192, "heads": 2},
  "data": {"train": "nowhere.tokens"}
}
)";

class ToolSimulate : public ::testing::Test {
 protected:
  void SetUp() override { folder_.write("train.json", kSimulatedRun); }

  testing::ProgramResult simulate(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {ZERO_TOOL, "simulate"});
    return testing::Program(arguments, {.directory = folder_.path()}).wait();
  }

  void expect_refused(const std::vector<std::string>& arguments, const std::string& part) const {
    const testing::ProgramResult result = simulate(arguments);
    EXPECT_NE(result.exit, 0) << result.output;
    EXPECT_NE(result.error.find(part), std::string::npos) << part << " in: " << result.error;
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
    EXPECT_EQ(result.output, "");
  }

  testing::TemporaryDirectory folder_;
  const std::string device_ = std::string(ZERO_TEST_DATA) + "/../configs/devices/h100-sxm.json";
};

TEST_F(ToolSimulate, SaysWhatOneRankOfManyDoes) {
  const std::vector<std::string> arguments{"train.json", "--ranks",  "64",   "--rank",
                                           "17",         "--device", device_};
  const testing::ProgramResult table = simulate(arguments);
  EXPECT_EQ(table.exit, 0) << table.error;
  for (const char* part : {"rank 17 of 64 on 8 hosts, stage 3", "Step  ", "exposed", "Memory at the peak",
                           "optimizer states", "all_gather", "h.1  "})
    EXPECT_NE(table.output.find(part), std::string::npos) << part << " in: " << table.output;
  std::istringstream lines(table.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110U) << line;

  std::vector<std::string> exact = arguments;
  exact.insert(exact.end(), {"--json", "--trace", "trace.json"});
  const testing::ProgramResult json = simulate(exact);
  ASSERT_EQ(json.exit, 0) << json.error;
  const auto told = nlohmann::json::parse(json.output);
  EXPECT_EQ(told["rank"], 17);
  EXPECT_GT(told["step_ns"], 0);
  EXPECT_GT(told["peak_bytes_by_purpose"]["activations"], 0);
  std::ifstream trace(folder_.path() / "trace.json");
  EXPECT_FALSE(nlohmann::json::parse(trace)["traceEvents"].empty());
}

TEST_F(ToolSimulate, RefusesInOneLine) {
  expect_refused({"train.json"}, "--device is required");
  expect_refused({"train.json", "--device", "none.json"}, "none.json");
  expect_refused({"train.json", "--device", "train.json"}, "train.json");
  expect_refused({"train.json", "--ranks", "4", "--rank", "4", "--device", device_}, "--rank");
  expect_refused({"train.json", "--device", device_, "--network", "train.json"}, "unknown member");
  expect_refused({"train.json", "--device", device_, "--memory", "1MB"}, "out of memory");
  expect_refused({"train.json", "--device", device_, "--trace", "nowhere/trace.json"}, "nowhere");
}

}  // namespace
}  // namespace zero

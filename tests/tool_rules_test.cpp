// `zero plan CONFIG --rules`, run as its users run it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/program.h"
#include "support/temporary_directory.h"

namespace zero {
namespace {

constexpr const char* kRun = R"({
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "precision": {"fp32": ["*ln_*"]},
  "zero_optimization": {"stage": 3},
  "optimizer": {"type": "Muon", "params": {"lr": 0.02, "weight_decay": 0.1}},
  "parameter_groups": [{"pattern": "w?e.weight", "elementwise": true}, {"pattern": "*.bias", "weight_decay": 0}],
  "frozen": ["h.0.mlp.*"],
  "model": {"vocab_size": 2000, "context_length": 64, "layers": 3, "width": 192, "heads": 2},
  "data": {"train": "nowhere.tokens"}
}
)";

TEST(ToolRules, OneLineForParametersThatAreAlike) {
  const testing::TemporaryDirectory folder;
  folder.write("train.json", kRun);
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {ZERO_TOOL, "plan", "train.json", "--rules"});
    return testing::Program(arguments, {.directory = folder.path()}).wait();
  };
  const testing::ProgramResult result = run({});
  EXPECT_EQ(result.exit, 0) << result.error;
  const auto line_of = [&](const std::string& pattern, const std::string& part) {
    for (size_t begin = 0; begin < result.output.size();) {
      const size_t end = std::min(result.output.find('\n', begin), result.output.size());
      const std::string line = result.output.substr(begin, end - begin);
      begin = end + 1;
      if (line.find("  " + pattern + " ") == 0 && line.find(part) != std::string::npos) return line;
    }
    ADD_FAILURE() << pattern << ", " << part << " in\n" << result.output;
    return std::string();
  };
  EXPECT_NE(line_of("h.*.attn.c_attn.weight", "Muon (orthogonalised)").find("0.02"), std::string::npos);
  EXPECT_NE(line_of("wte.weight", "Muon (AdamW)").find("w?e.weight"), std::string::npos);
  EXPECT_NE(line_of("h.*.ln_1.weight", "fp32").find("itself"), std::string::npos);
  EXPECT_NE(line_of("h.0.mlp.c_fc.weight", "frozen").find("bf16"), std::string::npos);
  EXPECT_NE(line_of("h.*.mlp.c_fc.weight", "Muon").find("16 bits more"), std::string::npos);
  EXPECT_EQ(run({"--ranks", "4"}).output, result.output) << "it does not depend on the ranks";
  EXPECT_NE(run({"--json"}).error.find("--rules"), std::string::npos);
}

// Nothing wraps in a terminal, and nothing is lost where two lines suffice.
TEST(ToolRules, TheTableFitsTheTerminal) {
  const testing::TemporaryDirectory folder;
  folder.write("train.json", kRun);
  const auto lines_of = [&](const std::string& columns) {
    const auto result = testing::Program({ZERO_TOOL, "plan", "train.json", "--rules"},
                                         {.directory = folder.path(), .environment = {{"COLUMNS", columns}}})
                            .wait();
    EXPECT_EQ(result.exit, 0) << result.error;
    std::vector<std::string> lines;
    std::istringstream text(result.output);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  };
  const auto longest = [](const std::vector<std::string>& lines) {
    size_t size = 0;
    for (const std::string& line : lines) size = std::max(size, line.size());
    return size;
  };
  const auto wide = lines_of("200");
  EXPECT_GT(longest(wide), 100u);
  for (const int columns : {100, 80}) {
    const auto narrow = lines_of(std::to_string(columns));
    EXPECT_LE(longest(narrow), static_cast<size_t>(columns));
    EXPECT_EQ(narrow.size(), 2 * wide.size()) << "a parameter has two lines";
    EXPECT_NE(narrow[2].find("wte.weight"), std::string::npos) << narrow[2];
    EXPECT_NE(narrow[3].find("Muon (AdamW)"), std::string::npos) << narrow[3];
  }
  EXPECT_EQ(lines_of("nonsense"), wide);
}

// The curve's highest and lowest points, and where it is drawn.
TEST(ToolRules, SchedulesAreDrawnAsText) {
  const testing::TemporaryDirectory folder;
  const auto drawn = [&](const std::string& type) {
    std::string run = kRun;
    run.insert(run.find("{") + 1, R"("run": {"steps": 200}, "scheduler": {"type": ")" + type +
                                      R"(", "params": {"warmup_steps": 20)" +
                                      (type == "CosineRestarts" ? R"(, "cycles": 3)" : "") + "}},");
    folder.write(type + ".json", run);
    return testing::Program({ZERO_TOOL, "plan", type + ".json", "--lr"}, {.directory = folder.path()}).wait();
  };
  std::set<std::string> curves;
  for (const std::string type :
       {"WarmupStableDecay", "InverseSqrt", "Polynomial", "CosineRestarts", "Cosine"}) {
    const testing::ProgramResult result = drawn(type);
    EXPECT_EQ(result.exit, 0) << result.error;
    EXPECT_GT(std::count(result.output.begin(), result.output.end(), '*'), 60) << result.output;
    EXPECT_NE(result.output.find(" |"), std::string::npos);
    curves.insert(result.output);
  }
  EXPECT_EQ(curves.size(), 5U) << "each has a shape of its own";
}

}  // namespace
}  // namespace zero

// The `zero` program on a run whose states are on a disk, and on weights that stay there.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/checkpoint_files.h"
#include "support/disk_directory.h"
#include "support/temporary_directory.h"
#include "support/tool_program.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using testing::ProgramOptions;
using testing::ProgramResult;
using testing::read_bytes;
using testing::zero_in;

constexpr const char* kDiskRun = R"({
  "train_batch_size": 4,
  "zero_optimization": {"stage": 3},
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
  "model": {"vocab_size": 2000, "context_length": 16, "layers": 2, "width": 16, "heads": 2, "dropout": 0.1},
  "data": {"train": "train.tokens", "eval": "eval.tokens", "tokenizer": "tokenizer"},
  "parallel": {"timeout_s": 30, "threads_per_rank": 1},
  "checkpoint": {"interval_steps": 2, "keep_last": 0},
  "run": {"directory": "memory", "steps": 4, "seed": 1},
}
)";

class ToolOnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(path() / "tokenizer");
    fs::copy_file(fs::path(ZERO_TEST_DATA) / "golden/tokenizer/tiny.json",
                  path() / "tokenizer/tokenizer.json");
    folder_.write("text.txt", testing::some_text());
    folder_.write("train.json", kDiskRun);
    good({"tokenize", "text.txt", "--tokenizer", "tokenizer", "--out", "train.tokens", "--held-out",
          "eval.tokens", "--held-out-fraction", "0.1"});
  }

  const fs::path& path() const { return folder_.path(); }
  std::string disk() const { return disk_.path().string(); }

  std::string good(const std::vector<std::string>& arguments) const {
    const ProgramResult result = zero_in(path(), arguments);
    EXPECT_EQ(result.exit, 0) << result.all();
    return result.output;
  }
  /// Fails and says `part` in one line.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& part,
                      const ProgramOptions& options = {}) const {
    const ProgramResult result = zero_in(path(), arguments, options);
    EXPECT_NE(result.exit, 0) << result.all();
    EXPECT_LT(result.exit, 128) << result.all();
    EXPECT_NE(result.error.find(part), std::string::npos) << result.all();
  }

  std::vector<std::string> train(const std::string& run, bool on_disk, std::vector<std::string> more = {},
                                 const char* ranks = "2") {
    std::vector<std::string> arguments{"train", "train.json", "--ranks", ranks, "--run-dir", run};
    if (on_disk)
      for (const char* states : {"parameter", "gradient", "master", "optimizer"})
        arguments.insert(arguments.end(), {"--set", std::string("offload.") + states + "=disk"});
    if (on_disk) arguments.insert(arguments.end(), {"--set", "offload.path=" + disk()});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> all;
    std::istringstream lines(read_bytes(path() / run / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const auto values = nlohmann::json::parse(line); values.contains("loss"))
        all.push_back(values["loss"].get<double>());
    return all;
  }
  testing::Tensors saved(const std::string& run) const {
    return testing::read_all(path() / run / "checkpoints/step-00000004");
  }
  std::map<std::string, std::string> files_in(const std::string& directory) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(path() / directory))
      files[entry.path().filename()] = read_bytes(entry.path());
    return files;
  }

 private:
  testing::TemporaryDirectory folder_;
  testing::DiskDirectory disk_;
};

TEST_F(ToolOnDisk, RunsAreUsedAsThoseInMemory) {
  good(train("memory", false));
  const std::string said = good(train("disk", true));
  EXPECT_NE(said.find("states on disk in " + disk()), std::string::npos) << said;
  ASSERT_EQ(losses("memory").size(), 4);
  EXPECT_EQ(losses("disk"), losses("memory"));
  EXPECT_TRUE(testing::same(saved("disk"), saved("memory")));

  good({"verify", "disk"});
  good(train("disk", true, {"--resume", "auto", "--set", "run.steps=6"}));
  good(train("memory", false, {"--resume", "auto", "--set", "run.steps=6"}));
  EXPECT_EQ(losses("disk"), losses("memory"));
  good({"verify", "disk"});
  for (const std::string run : {"disk", "memory"}) good({"consolidate", run, run + "-model"});
  EXPECT_GT(files_in("disk-model").size(), 1);
  EXPECT_EQ(files_in("disk-model"), files_in("memory-model"));
  EXPECT_TRUE(fs::is_empty(disk()));
}

TEST_F(ToolOnDisk, WeightsThatStayThereGiveTheSameAnswers) {
  good(train("disk", true));
  const std::vector<std::string> eval{"eval", "disk", "--data", "eval.tokens", "--json"},
      generate{"generate", "disk", "--prompt", "The clocks", "--tokens", "8", "--seed", "5"};
  const auto with = [](std::vector<std::string> arguments, const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const std::string loss = good(with(eval, {"--ranks", "2"}));
  EXPECT_NE(loss.find("\"loss\""), std::string::npos);
  EXPECT_EQ(good(with(eval, {"--ranks", "2", "--disk", disk(), "--budget", "0"})), loss);
  EXPECT_EQ(good(with(eval, {"--disk", disk()})), good(eval));
  const std::string text = good(generate);
  EXPECT_TRUE(text.starts_with("The clocks"));
  EXPECT_EQ(good(with(generate, {"--disk", disk()})), text);
  EXPECT_EQ(good(with(generate, {"--disk", disk(), "--budget", "0"})), text);
  for (const std::string bad : {"/dev/shm", "/nowhere"}) expect_refused(with(eval, {"--disk", bad}), bad);
}

// The rank sets its file aside before it trains.
TEST_F(ToolOnDisk, AFullDiskIsFoundAtTheStart) {
  ProgramOptions full;
  full.file_bytes = 100000;
  expect_refused(train("disk", true, {}, "1"), "bytes aside for this rank's states", full);
  EXPECT_FALSE(fs::exists(path() / "disk/checkpoints"));
  EXPECT_TRUE(!fs::exists(path() / "disk/metrics.jsonl") || losses("disk").empty());
  EXPECT_TRUE(fs::is_empty(disk()));
}

}  // namespace
}  // namespace zero

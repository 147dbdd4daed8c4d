// Run directories: never mixed, nothing lost; and what is checked before a run.
#include "train/run_directory.h"

#include <gtest/gtest.h>

#include "mesh/agree.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_run.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/run_files.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using testing::collect_ranks;
using testing::course_of;
using testing::read_bytes;
using testing::run_ranks;
using testing::SmallRun;
using testing::train_on;

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class RunDirectory : public ::testing::Test {
 protected:
  const SmallRun small;
  const fs::path run = small.path() / "run";
};

TEST_F(RunDirectory, HoldsTheEffectiveConfiguration) {
  const Config config = small.config(2);
  train_on(2, config);
  EXPECT_EQ(training::read_config(run), config);
  EXPECT_EQ(names_in(run),
            (std::vector<std::string>{".lock", "checkpoints", "config.json", "metrics.jsonl"}));
}

TEST_F(RunDirectory, ThatVanishesWhileTheRunGoesOnIsNamed) {
  const Config config = small.config(2, {"run.steps=4"});
  const auto results = collect_ranks(2, [&](const Mesh& mesh) {
    const auto vanish = [&](const StepReport& report) {
      if (report.step == 2 && mesh.rank() == 0) fs::remove_all(run);
    };
    train(config, mesh, {.on_step = vanish});
  });
  EXPECT_NE(results[0].error.find("metrics.jsonl: the file, or the directory it was in, was removed"),
            std::string::npos)
      << results[0].error;
  EXPECT_NE(results[1].error.find("rank 0"), std::string::npos) << results[1].error;
}

TEST_F(RunDirectory, HoldsWhenTheRunWentOn) {
  const Config config = small.config(1, {"run.steps=3", "checkpoint.interval_steps=1"});
  const auto resumes = [&] {
    std::vector<int64_t> steps;
    std::ifstream file(run / training::kResumesFile);
    for (std::string line; std::getline(file, line);) steps.push_back(nlohmann::json::parse(line).at("step"));
    return steps;
  };
  train_on(1, config, {.pause_after = 1});
  EXPECT_TRUE(resumes().empty());
  train_on(1, config, {.resume = "auto", .pause_after = 2});
  train_on(1, config, {.resume = "auto"});
  EXPECT_EQ(resumes(), (std::vector<int64_t>{1, 2}));
  train_on(1, config, {.overwrite = true});
  EXPECT_TRUE(resumes().empty()) << "those of the run before have another name";
}

TEST_F(RunDirectory, RefusesToMixRuns) {
  train_on(2, small.config(2, {"run.steps=2"}));
  const auto before = course_of(run);
  EXPECT_ERROR(check_run(small.config(2, {"run.steps=2"}), 2), Config, "it holds a run already");
  EXPECT_ERROR(check_run(small.config(2, {"model.width=32", "data.shuffle=false"}), 2), Config,
               "another configuration: model.width 16, now 32; data.shuffle true, now false");
  EXPECT_ERROR(check_run(small.config(2), 2, {.resume = "auto", .overwrite = true}), Config, "--overwrite");
  const auto results = collect_ranks(2, [&](const Mesh& mesh) { train(small.config(2), mesh); });
  for (const auto& result : results)
    EXPECT_NE(result.error.find("it holds a run already"), std::string::npos) << result.error;
  EXPECT_EQ(course_of(run), before);
}

TEST_F(RunDirectory, OverwriteKeepsWhatWasThere) {
  train_on(2, small.config(2, {"run.steps=2"}));
  const auto before = course_of(run);
  const std::string config = read_bytes(run / "config.json");
  train_on(2, small.config(2, {"run.steps=3", "model.width=32"}), {.overwrite = true});
  EXPECT_EQ(course_of(run).size(), 4);
  EXPECT_EQ(read_bytes(run / "config-1.json"), config);
  EXPECT_EQ(names_in(run / "checkpoints"), std::vector<std::string>{"step-00000003"});
  EXPECT_EQ(names_in(run / "checkpoints-1"), std::vector<std::string>{"step-00000002"});
  fs::rename(run / "metrics-1.jsonl", run / "metrics.jsonl");
  EXPECT_EQ(course_of(run), before);
}

TEST_F(RunDirectory, ResumeRefusesAnotherModel) {
  train_on(2, small.config(2, {"run.steps=2"}));
  EXPECT_ERROR(check_run(small.config(2, {"model.heads=4"}), 2, {.resume = "auto"}), Config,
               "step-00000002: it is of another model: model.heads 2, now 4");
  EXPECT_ERROR(check_run(small.config(2), 2, {.resume = "nowhere"}), Config,
               "nowhere: there is no such directory");
  EXPECT_ERROR(check_run(small.config(2), 2, {.resume = small.path().string()}), Config,
               "neither a run directory nor a checkpoint");
  // A run stands for its newest checkpoint.
  check_run(small.config(2), 2, {.resume = run.string()});
  // Dropout is no part of what the tensors mean.
  check_run(small.config(2, {"model.dropout=0.2", "run.steps=9"}), 2, {.resume = "auto"});
}

TEST_F(RunDirectory, ResumeAutoStartsWhereThereIsNothing) {
  train_on(2, small.config(2, {"run.steps=2"}), {.resume = "auto"});
  EXPECT_EQ(course_of(run).size(), 3);
}

TEST_F(RunDirectory, GoingBackKeepsTheOtherFuture) {
  const std::vector<std::string> overrides = {"checkpoint.interval_steps=2", "checkpoint.keep_last=0"};
  train_on(2, small.config(2, overrides));
  const auto course = course_of(run);
  train_on(2, small.config(2, overrides), {.resume = (run / "checkpoints" / "step-00000002").string()});
  EXPECT_EQ(course_of(run), course);
  EXPECT_EQ(names_in(run / "checkpoints"),
            (std::vector<std::string>{"step-00000002", "step-00000004", "step-00000004-1", "step-00000006",
                                      "step-00000006-1"}));
}

TEST_F(RunDirectory, AnotherRunsCheckpointStartsANewRun) {
  train_on(2, small.config(2, {"run.steps=2"}));
  const std::string checkpoint = (run / "checkpoints" / "step-00000002").string();
  train_on(2, small.config(2, {"run.steps=3"}, "other"), {.resume = checkpoint});
  EXPECT_EQ(course_of(small.path() / "other").size(), 2);  // step 3 and an evaluation
  EXPECT_ERROR(check_run(small.config(2, {}, "other"), 2, {.resume = checkpoint}), Config,
               "is of another one");
}

TEST_F(RunDirectory, OneProcessAtATime) {
  const training::RunLock lock(run);
  EXPECT_ERROR(training::RunLock{run}, Config, "another process is training in it");
}

TEST_F(RunDirectory, ThatCannotBeMadeIsNamed) {
  std::ofstream(small.path() / "file") << "x";
  EXPECT_ERROR(check_run(small.config(2, {}, "file"), 2), Config, "file: it is not a directory");
  EXPECT_ERROR(training::RunLock{small.path() / "file" / "run"}, Io, "file/run");
}

TEST_F(RunDirectory, TextsAreCheckedFirst) {
  EXPECT_ERROR(check_run(small.config(2, {"data.train="}), 2), Config, "expected a token file, got none");
  EXPECT_ERROR(check_run(small.config(2, {"data.train=missing.tokens"}), 2), Io, "missing.tokens");
  EXPECT_ERROR(check_run(small.config(2, {"model.vocab_size=63"}), 2), Config,
               "train.tokens: its vocabulary has 64 tokens, the model only 63");
  testing::write_tokens(small.path() / "short.tokens", 8);
  const std::string name = (small.path() / "short.tokens").string();
  EXPECT_ERROR(check_run(small.config(2, {"data.eval=" + name}), 2), Config,
               "short.tokens: it holds 8 tokens, and one sample needs 9");
  fs::resize_file(small.path() / "eval.tokens", 100);
  EXPECT_ERROR(check_run(small.config(2), 2), Corrupt, "eval.tokens");
  EXPECT_ERROR(check_run(small.config(2, {"data.tokenizer=missing"}), 2), Io, "missing");
  EXPECT_FALSE(fs::exists(run));
}

TEST_F(RunDirectory, AnotherVocabularyIsRefusedOnResume) {
  train_on(2, small.config(2, {"run.steps=2"}));
  testing::write_tokens(small.path() / "train.tokens", 900, {.size = 64, .fingerprint = 99});
  EXPECT_ERROR(check_run(small.config(2), 2, {.resume = "auto"}), Config, "train.tokens");
}

TEST(Metrics, CutLeavesNoLaterLine) {
  const testing::TemporaryDirectory directory;
  const fs::path path = directory.path() / "metrics.jsonl";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  training::cut_metrics(path, 3);  // nothing there: nothing to do
  EXPECT_FALSE(fs::exists(path));
  write("{\"step\": 1}\n{\"step\": 2}\n{\"step\": 2, \"eval_loss\": 1}\n{\"step\": 3}\n{\"st");
  training::cut_metrics(path, 2);
  EXPECT_EQ(read_bytes(path), "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 2, \"eval_loss\": 1}\n");
  write("{\"step\": 1}\nnonsense\n");
  EXPECT_ERROR(training::cut_metrics(path, 2), Corrupt, "metrics.jsonl:2");
  EXPECT_EQ(read_bytes(path), "{\"step\": 1}\nnonsense\n");
}

TEST(Metrics, NumbersThatJsonDoesNotHaveAreNull) {
  StepReport report;
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.grad_norm = std::numeric_limits<double>::infinity();
  const auto json = nlohmann::json::parse(training::metrics_line(report));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["clip_coefficient"], 1.0);
}

TEST(SetAside, NeverTakesANameThatIsTaken) {
  const testing::TemporaryDirectory directory;
  for (const char* name : {"a.json", "a-1.json", "a-2.json"}) std::ofstream(directory.path() / name) << name;
  EXPECT_EQ(training::set_aside(directory.path() / "a.json"), directory.path() / "a-3.json");
  EXPECT_EQ(read_bytes(directory.path() / "a-3.json"), "a.json");
  EXPECT_EQ(read_bytes(directory.path() / "a-1.json"), "a-1.json");
  EXPECT_EQ(training::set_aside(directory.path() / "a.json"), fs::path());
}

TEST(Progress, Durations) {
  EXPECT_EQ(training::duration_text(12.4), "12s");
  EXPECT_EQ(training::duration_text(185), "3m05s");
  EXPECT_EQ(training::duration_text(3720), "1h02m");
  EXPECT_EQ(training::duration_text(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Progress, ASkippedStepHasALineOfItsOwnThatNamesTheFirstOverflow) {
  const testing::TemporaryDirectory directory;
  const fs::path path = directory.path() / "log";
  std::FILE* const out = std::fopen(path.c_str(), "w");
  {
    training::Progress progress(out, 0, 100, 50);
    for (int64_t step = 1; step <= 3; ++step) {
      StepReport report;
      report.step = step;
      report.skipped = step == 3;
      if (report.skipped) report.overflow = "h.0.ln_1.weight on rank 5";
      report.loss_scale = 512;
      progress.step(report);
    }
  }
  std::fclose(out);
  const std::string log = read_bytes(path);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << "the first step and the skipped one: " << log;
  EXPECT_NE(log.find("skipped: the gradient is not finite: h.0.ln_1.weight on rank 5, loss scale 512"),
            std::string::npos)
      << log;
}

// At 80 columns too, the time that is left is shown, and no figure is cut into another one.
TEST(Progress, ANarrowTerminalShowsWhatMattersMost) {
  const std::vector<std::string> fields = {"step 1234/100000", "loss 10.1234", "ETA 12h34m",
                                           "12.3K tokens/s",   "lr 3.00e-04",  "grad norm 12.345",
                                           "memory 1.23 GiB"};
  const std::string all =
      "[==========          ] step 1234/100000  loss 10.1234  ETA 12h34m  12.3K tokens/s  lr 3.00e-04  grad "
      "norm "
      "12.345  memory 1.23 GiB";
  EXPECT_EQ(training::bar_line(fields, 0.5, 200), all);
  EXPECT_EQ(training::bar_line(fields, 0.5, 79),
            "[=====     ] step 1234/100000  loss 10.1234  ETA 12h34m  12.3K tokens/s");
  EXPECT_EQ(training::bar_line(fields, 1, 50), "step 1234/100000  loss 10.1234  ETA 12h34m");
  EXPECT_EQ(training::bar_line(fields, 1, 40), "step 1234/100000  loss 10.1234");
  EXPECT_EQ(training::bar_line(fields, 1, 10), "step 1234/");
  for (int columns = 1; columns < 200; ++columns) {
    const std::string line = training::bar_line(fields, 0.3, columns);
    EXPECT_LE(static_cast<int>(line.size()), columns);
    const std::string text = line.starts_with('[') ? line.substr(line.find(']') + 2) : line;
    EXPECT_TRUE(columns < 16 || all.find(text + "  ") != all.npos || all.ends_with(text)) << line;
  }
}

TEST(Agree, OneRanksErrorIsEverybodys) {
  const auto results = collect_ranks(3, [](const Mesh& mesh) {
    EXPECT_EQ(detail::text_of_rank(mesh, 0, mesh.rank() == 0 ? "hello" : "", "text"), "hello");
    EXPECT_EQ(detail::text_of_rank(mesh, 0, "", "text"), "");
    detail::together(mesh, "nothing", [] {});
    detail::together(mesh, "something", [&] {
      if (mesh.rank() == 1) fail(ErrorKind::Io, "disk", "is full");
    });
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.error, "I/O error: rank 1: disk: is full");
    EXPECT_TRUE(result.failures.empty());
  }
}

TEST(Agree, WhatAllRanksSayIsNotOneRanks) {
  const auto results = collect_ranks(2, [](const Mesh& mesh) {
    detail::together(mesh, "something", [] { fail(ErrorKind::Config, "key", "is wrong"); });
  });
  for (const auto& result : results) EXPECT_EQ(result.error, "config error: key: is wrong");
}

}  // namespace
}  // namespace zero

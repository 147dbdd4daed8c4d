// Runs of a tiny GPT-2: what they compute, resume and evaluate.
#include "zero/train.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_run.h"
#include "zero/checkpoint.h"
#include "zero/from_config.h"
#include "zero/load_model.h"
#include "zero/mesh.h"

namespace zero {
namespace {

using testing::course_of;
using testing::losses_of;
using testing::metrics_of;
using testing::newest_values;
using testing::run_ranks;
using testing::SmallRun;
using testing::train_on;

/// Tells the process to stop after some steps.
struct StopAfter {
  int steps;
  int signal = 15;
  int operator()() { return --steps <= 0 ? signal : 0; }
};

struct Case {
  const char* name;
  std::vector<std::string> overrides;
};

class Resume : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Runs, Resume,
    ::testing::Values(Case{"fp32", {}}, Case{"bf16", {"bf16.enabled=true"}},
                      Case{"fp32_accumulation", {"gradient_accumulation_steps=3"}},
                      Case{"bf16_accumulation", {"bf16.enabled=true", "gradient_accumulation_steps=3"}},
                      Case{"stage2", {"zero_optimization.stage=2"}},
                      Case{"stage1_accumulation",
                           {"zero_optimization.stage=1", "gradient_accumulation_steps=3"}},
                      Case{"stage0", {"zero_optimization.stage=0"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(Resume, GoesOnAsIfNothingHadHappened) {
  const SmallRun small;
  train_on(2, small.config(2, GetParam().overrides, "whole"));
  const Config config = small.config(2, GetParam().overrides, "parts");
  run_ranks(2, [&](const Mesh& mesh) {
    const TrainResult first = train(config, mesh, {.stop_signal = StopAfter{2}});
    EXPECT_EQ(first.steps, 2);
    EXPECT_EQ(first.signal, 15);
    EXPECT_FALSE(first.checkpoint.empty());
    EXPECT_FALSE(first.evaluation);
  });
  run_ranks(2, [&](const Mesh& mesh) {
    const TrainResult second = train(config, mesh, {.resume = "auto"});
    EXPECT_EQ(second.first_step, 2);
    EXPECT_EQ(second.steps, 6);
    EXPECT_EQ(second.signal, 0);
    EXPECT_TRUE(second.evaluation);
  });
  ASSERT_EQ(course_of(small.path() / "whole").size(), 7);  // six steps and an evaluation
  EXPECT_EQ(course_of(small.path() / "parts"), course_of(small.path() / "whole"));
  EXPECT_EQ(newest_values(small.path() / "parts"), newest_values(small.path() / "whole"));
}

TEST(Train, PausesAfterAStepAndGoesOn) {
  const SmallRun small;
  train_on(2, small.config(2, {}, "whole"));
  for (const int64_t until : {2, 5, 6}) {
    run_ranks(2, [&](const Mesh& mesh) {
      const TrainResult part =
          train(small.config(2, {}, "parts"), mesh, {.resume = "auto", .pause_after = until});
      EXPECT_EQ(part.steps, until);
      EXPECT_EQ(part.signal, 0);
      EXPECT_FALSE(part.checkpoint.empty());
      EXPECT_EQ(part.evaluation.has_value(), until == 6);
    });
  }
  EXPECT_EQ(course_of(small.path() / "parts"), course_of(small.path() / "whole"));
  EXPECT_EQ(newest_values(small.path() / "parts"), newest_values(small.path() / "whole"));
}

// Without this the tests above could pass with the random state forgotten.
TEST(Train, DropoutSeedChangesLosses) {
  const SmallRun small;
  train_on(2, small.config(2, {"model.seed=1", "data.seed=1", "run.seed=1"}, "a"));
  train_on(2, small.config(2, {"model.seed=1", "data.seed=1", "run.seed=2"}, "b"));
  const auto a = losses_of(small.path() / "a"), b = losses_of(small.path() / "b");
  ASSERT_EQ(a.size(), 6);
  EXPECT_NE(a, b);
}

TEST(Train, LossFalls) {
  const SmallRun small;
  train_on(2, small.config(2, {"run.steps=30", "scheduler.params.total_steps=30"}));
  const auto losses = losses_of(small.path() / "run");
  ASSERT_EQ(losses.size(), 30);
  EXPECT_NEAR(losses.front(), std::log(64), 0.3);
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

TEST(Train, CrashLosesOnlyWhatCameAfterTheCheckpoint) {
  const SmallRun small;
  const std::vector<std::string> overrides = {"checkpoint.interval_steps=2", "run.eval_interval_steps=3"};
  train_on(2, small.config(2, overrides, "whole"));
  const Config config = small.config(2, overrides, "parts");
  const auto crash = [](const StepReport& report) {
    if (report.step == 5) throw std::runtime_error("crash");
  };
  const auto results =
      testing::collect_ranks(2, [&](const Mesh& mesh) { train(config, mesh, {.on_step = crash}); });
  for (const auto& result : results) EXPECT_EQ(result.exit, 1);
  EXPECT_EQ(losses_of(small.path() / "parts").size(), 5);
  std::ofstream(small.path() / "parts" / "metrics.jsonl", std::ios::app) << R"({"step": 6, "lo)";
  train_on(2, config, {.resume = "auto"});
  EXPECT_EQ(course_of(small.path() / "parts"), course_of(small.path() / "whole"));
}

TEST(Train, SamplesDoNotDependOnTheNumberOfRanks) {
  const SmallRun small;
  const std::vector<std::string> overrides = {"model.dropout=0", "run.eval_batches=100"};
  std::vector<nlohmann::json> one;
  for (const int ranks : {1, 2, 3}) {
    const std::string name = std::to_string(ranks);
    train_on(ranks, small.config(ranks, overrides, name));
    const auto lines = metrics_of(small.path() / name);
    ASSERT_EQ(lines.size(), 7);
    if (ranks == 1) one = lines;
    for (size_t i = 0; i < 6; ++i)
      EXPECT_NEAR(lines[i]["loss"].get<double>(), one[i]["loss"].get<double>(), 1e-4) << ranks << " " << i;
    // Whatever the ranks, each of the 17 samples once.
    EXPECT_EQ(lines[6]["eval_tokens"], 17 * 8);
    EXPECT_NEAR(lines[6]["eval_loss"].get<double>(), one[6]["eval_loss"].get<double>(), 1e-4);
  }
}

TEST(Train, StagesHaveTheSameLosses) {
  const SmallRun small;
  std::vector<std::string> first;
  for (const int stage : {1, 2, 3}) {
    const std::string name = "stage" + std::to_string(stage);
    train_on(2, small.config(2, {"zero_optimization.stage=" + std::to_string(stage)}, name));
    const auto course = course_of(small.path() / name);
    if (first.empty()) first = course;
    EXPECT_EQ(course, first) << name;
  }
  ASSERT_EQ(first.size(), 7);
}

TEST(Train, PrintingAndMetricsChangeNothing) {
  const SmallRun small;
  train_on(2, small.config(2, {}, "quiet"));
  const auto log = small.path() / "log";
  run_ranks(2, [&](const Mesh& mesh) {
    std::FILE* out = mesh.rank() == 0 ? std::fopen(log.c_str(), "w") : nullptr;
    train(small.config(2, {"logging.print_interval_steps=1"}, "loud"), mesh, {.progress = out});
    if (out != nullptr) std::fclose(out);
  });
  EXPECT_EQ(course_of(small.path() / "loud"), course_of(small.path() / "quiet"));
  const std::string text = testing::read_bytes(log);
  for (int step = 1; step <= 6; ++step)
    EXPECT_NE(text.find("step " + std::to_string(step) + "/6  loss "), std::string::npos) << text;
  EXPECT_NE(text.find("perplexity"), std::string::npos) << text;
  EXPECT_NE(text.find("saved "), std::string::npos) << text;
}

TEST(Train, MetricsHaveEveryField) {
  const SmallRun small;
  train_on(2, small.config(2, {"residency.share=false"}));  // so that slabs come and go
  const auto lines = metrics_of(small.path() / "run");
  ASSERT_EQ(lines.size(), 7);
  const nlohmann::json& line = lines[2];
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["tokens"], 3 * 12 * 8);
  EXPECT_GT(line["grad_norm"].get<double>(), 0);
  EXPECT_LE(line["clip_coefficient"].get<double>(), 1);
  EXPECT_GT(line["lr"].get<double>(), 0);
  EXPECT_GT(line["tokens_per_s"].get<double>(), 0);
  EXPECT_GT(line["step_s"].get<double>(), 0);
  EXPECT_GE(line["waited_s"].get<double>(), 0);
  EXPECT_GT(line["resident_bytes"].get<int64_t>(), 1 << 20);
  EXPECT_GE(line["peak_resident_bytes"].get<int64_t>(), line["resident_bytes"].get<int64_t>());
  EXPECT_GT(line["peak_slab_bytes"].get<int64_t>(), 0);
  EXPECT_EQ(line["skipped"], false);
  EXPECT_NEAR(lines[6]["eval_perplexity"].get<double>(), std::exp(lines[6]["eval_loss"].get<double>()), 1e-9);
}

TEST(Train, OneRankThatIsToldStopsAll) {
  const SmallRun small;
  run_ranks(3, [&](const Mesh& mesh) {
    TrainOptions options;
    if (mesh.rank() == 1) options.stop_signal = StopAfter{3, 2};
    const TrainResult result = train(small.config(3), mesh, options);
    EXPECT_EQ(result.steps, 3);
    EXPECT_EQ(result.signal, 2);
    EXPECT_EQ(result.checkpoint.filename(), "step-00000003");
  });
}

TEST(Train, WithoutCheckpointsAStopSavesNone) {
  const SmallRun small;
  run_ranks(2, [&](const Mesh& mesh) {
    const auto config = small.config(2, {"checkpoint.save_at_end=false"});
    const TrainResult result = train(config, mesh, {.stop_signal = StopAfter{2}});
    EXPECT_EQ(result.steps, 2);
    EXPECT_TRUE(result.checkpoint.empty());
  });
  EXPECT_FALSE(std::filesystem::exists(small.path() / "run" / "checkpoints"));
}

// Both ways of saving leave the same bytes, and neither changes what is trained.
TEST(Train, SavingInTheBackgroundChangesNothing) {
  const SmallRun small;
  const std::vector<std::string> at_once = {"checkpoint.interval_steps=1", "checkpoint.async=false"};
  train_on(2, small.config(2, at_once, "at_once"));
  train_on(2, small.config(2, {"checkpoint.interval_steps=1", "checkpoint.keep_last=0"}, "background"));
  EXPECT_EQ(course_of(small.path() / "background"), course_of(small.path() / "at_once"));
  EXPECT_EQ(newest_values(small.path() / "background"), newest_values(small.path() / "at_once"));
  for (int step = 1; step <= 6; ++step)
    EXPECT_NO_THROW(
        CheckpointReader(small.path() / "background/checkpoints" / ("step-0000000" + std::to_string(step)))
            .verify());
  // Resumed from one that was written while training went on.
  train_on(2, small.config(2, at_once, "background"),
           {.resume = small.path() / "background/checkpoints/step-00000003"});
  EXPECT_EQ(course_of(small.path() / "background"), course_of(small.path() / "at_once"));
}

// A limit on the size of one rank's files stands for a full disk.
TEST(Train, AFailedSaveStopsTrainingUnlessItMayGoOn) {
  const SmallRun small;
  for (const std::string async : {"true", "false"})
    for (const bool goes_on : {false, true}) {
      const Config config =
          small.config(2,
                       {"run.steps=5", "scheduler.params.total_steps=5", "checkpoint.interval_steps=2",
                        "checkpoint.save_at_end=false", "checkpoint.async=" + async,
                        std::string("checkpoint.on_failure=") + (goes_on ? "continue" : "stop")},
                       async + (goes_on ? "-continue" : "-stop"));
      const auto results = testing::collect_ranks(2, [&](const Mesh& mesh) {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{10000, 10000};
        if (mesh.rank() == 1) setrlimit(RLIMIT_FSIZE, &limit);
        const TrainResult result = train(config, mesh);
        EXPECT_EQ(result.steps, 5);
        EXPECT_EQ(result.failed_saves, 2);
        EXPECT_TRUE(result.checkpoint.empty());
      });
      for (const auto& result : results) {
        EXPECT_EQ(result.exit, goes_on ? 0 : 1) << result.error;
        EXPECT_TRUE(result.failures.empty()) << result.failures[0];
        if (!goes_on) {
          EXPECT_NE(result.error.find("rank-00001.safetensors: cannot write"), std::string::npos)
              << result.error;
        }
      }
      EXPECT_EQ(latest_checkpoint(config.run.directory + "/checkpoints"), "");
    }
}

// What training may go on after on the way is an error at its end.
TEST(Train, AFailedSaveAtTheEndIsAnError) {
  const SmallRun small;
  const Config config = small.config(2, {"checkpoint.on_failure=continue"});
  const auto results = testing::collect_ranks(2, [&](const Mesh& mesh) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10000, 10000};
    if (mesh.rank() == 1) setrlimit(RLIMIT_FSIZE, &limit);
    train(config, mesh);
  });
  for (const auto& result : results) EXPECT_EQ(result.exit, 1);
  EXPECT_EQ(losses_of(small.path() / "run").size(), 6);
}

TEST(Train, ARequestSavesAndTrainingGoesOn) {
  const SmallRun small;
  run_ranks(2, [&](const Mesh& mesh) {
    int asked = 0;
    TrainOptions options;
    if (mesh.rank() == 1) options.save_requested = [&] { return ++asked == 3; };
    const TrainResult result = train(small.config(2, {"checkpoint.save_at_end=false"}), mesh, options);
    EXPECT_EQ(result.steps, 6);
    EXPECT_EQ(result.checkpoint.filename(), "step-00000003");
  });
}

TEST(Train, FrozenParametersKeepTheirValues) {
  const SmallRun small;
  train_on(2, small.config(2, {R"(frozen=["wpe.*", "h.1.*"])", "run.steps=1"}, "one"));
  train_on(2, small.config(2, {R"(frozen=["wpe.*", "h.1.*"])", "run.steps=4"}, "four"));
  const auto one = newest_values(small.path() / "one"), four = newest_values(small.path() / "four");
  int frozen = 0;
  for (const auto& [name, values] : one) {
    if (!name.starts_with("model/")) continue;
    const bool is_frozen = name.starts_with("model/wpe.") || name.starts_with("model/h.1.");
    EXPECT_EQ(values == four.at(name), is_frozen) << name;
    frozen += is_frozen;
  }
  EXPECT_GT(frozen, 1);
}

TEST(Train, TrainableParametersAloneAreSavedAndResumed) {
  const SmallRun small;
  const std::vector<std::string> overrides = {R"(frozen=["wpe.*", "h.1.*"])"};
  std::vector<std::string> only = overrides;
  only.push_back("checkpoint.trainable_only=true");
  train_on(2, small.config(2, overrides, "whole"));
  train_on(2, small.config(2, only, "parts"), {.stop_signal = StopAfter{3}});
  train_on(2, small.config(2, only, "parts"), {.resume = "auto"});
  EXPECT_EQ(course_of(small.path() / "parts"), course_of(small.path() / "whole"));
  const auto whole = newest_values(small.path() / "whole"), parts = newest_values(small.path() / "parts");
  EXPECT_EQ(parts.count("model/wpe.weight"), 0);
  EXPECT_EQ(parts.at("model/wte.weight"), whole.at("model/wte.weight"));
  EXPECT_LT(parts.size(), whole.size());
}

TEST(Train, ResumesOnAnotherNumberOfRanks) {
  const SmallRun small;
  const std::vector<std::string> overrides = {"model.dropout=0"};
  train_on(3, small.config(3, overrides, "whole"));
  train_on(2, small.config(2, overrides, "parts"), {.stop_signal = StopAfter{3}});
  train_on(3, small.config(3, overrides, "parts"), {.resume = "auto"});
  const auto whole = losses_of(small.path() / "whole"), parts = losses_of(small.path() / "parts");
  ASSERT_EQ(parts.size(), 6);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(parts[i], whole[i], 1e-4) << i;
}

TEST(Train, FinishedRunHasNothingLeftToDo) {
  const SmallRun small;
  const Config config = small.config(2);
  train_on(2, config);
  const auto course = course_of(small.path() / "run");
  run_ranks(2, [&](const Mesh& mesh) {
    const TrainResult result = train(config, mesh, {.resume = "auto"});
    EXPECT_EQ(result.first_step, 6);
    EXPECT_EQ(result.steps, 6);
    EXPECT_TRUE(std::isnan(result.loss));
  });
  EXPECT_EQ(course_of(small.path() / "run"), course);
}

// Ids beyond the vocabulary behind a header that checks out: only some rank gets to read them.
TEST(Train, CorruptTokensEndAllRanks) {
  const SmallRun small;
  const auto path = small.path() / "train.tokens";
  const auto size = std::filesystem::file_size(path);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size - 200));
    file.write("\xff\xff\xff\xff", 4);
  }
  const Config config = small.config(2, {"run.steps=100"});
  const auto results = testing::collect_ranks(2, [&](const Mesh& mesh) { train(config, mesh); });
  int named = 0;
  for (const auto& result : results) {
    EXPECT_EQ(result.exit, 1);
    named += result.error.find("train.tokens") != std::string::npos;
  }
  EXPECT_GE(named, 1) << results[0].error << "\n" << results[1].error;
}

TEST(Train, RanksWithAnotherConfigurationAreNamed) {
  const SmallRun small;
  const auto results = testing::collect_ranks(3, [&](const Mesh& mesh) {
    train(small.config(3, {mesh.rank() == 2 ? "run.seed=9" : "run.seed=3"}), mesh);
  });
  for (const auto& result : results) {
    EXPECT_NE(result.error.find("rank 2 has another one than rank 0"), std::string::npos) << result.error;
  }
}

TEST(LoadModel, EvaluatesAsTheRunDid) {
  const SmallRun small;
  for (const bool bf16 : {false, true}) {
    const std::string name = bf16 ? "bf16" : "fp32";
    train_on(3, small.config(3, {"run.eval_batches=100", bf16 ? "bf16.enabled=true" : "bf16.enabled=false"},
                             name));
    const double expected = metrics_of(small.path() / name).back()["eval_loss"].get<double>();
    run_ranks(1, [&](const Mesh& mesh) {
      const SavedModel saved = find_model(small.path() / name);
      EXPECT_EQ(saved.step, 6);
      EXPECT_EQ(saved.vocabulary, testing::kRunVocabulary);
      const auto model = load_model(saved, bf16 ? at::kBFloat16 : at::kFloat);
      model->eval();
      const EvalResult result = evaluate(
          [&](const auto& tokens, const auto& targets) { return model->loss(tokens, targets); },
          TokenFile::open(small.path() / "eval.tokens"), {.sequence_length = 8, .batch_size = 5}, mesh);
      EXPECT_EQ(result.samples, 17);
      EXPECT_NEAR(result.loss, expected, bf16 ? 1e-2 : 1e-5);
    });
  }
}

TEST(LoadModel, RefusesOtherModels) {
  const SmallRun small;
  train_on(2, small.config(2, {"run.steps=1"}));
  const auto run = small.path() / "run";
  const auto checkpoint = latest_checkpoint(run / "checkpoints");
  run_ranks(1, [&](const Mesh&) {
    SavedModel saved = find_model(checkpoint);
    EXPECT_EQ(saved.config.model.width, 16);
    saved.config.model.width = 32;
    EXPECT_ERROR(load_model(saved), Config, "has shape [64, 16], expected [64, 32]");
    saved.config.model.width = 16;
    saved.config.model.layers = 3;
    EXPECT_ERROR(load_model(saved), Config, "it has no parameter h.2.");
    saved.config.model.layers = 1;
    EXPECT_ERROR(load_model(saved), Config, "it holds model/h.1.");
    EXPECT_ERROR(find_model(small.path() / "nothing"), Config, "there is no such directory");
    EXPECT_ERROR(find_model(small.path()), Config, "neither a run directory nor a checkpoint");
  });
}

}  // namespace
}  // namespace zero

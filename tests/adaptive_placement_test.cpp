// A placement that meets larger activations than it was chosen for: states move between steps, the bits stay.
#include "zero/adaptive_placement.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_run.h"
#include "zero/cpu_allocator.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/lazy.h"
#include "zero/memory_in_use.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"
#include "zero/train.h"

namespace zero {
namespace {

using namespace zero::testing;
namespace fs = std::filesystem;

constexpr int64_t kWidth = 192, kLayers = 5;

struct DeepNetImpl : torch::nn::Module {
  DeepNetImpl() {
    for (int64_t i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor loss(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::LinearImpl>()->forward(x).tanh();
    return x.square().mean();
  }
  torch::nn::ModuleList layers{register_module("layers", torch::nn::ModuleList())};
};
TORCH_MODULE(DeepNet);

EngineOptions options_of(int stage, bool bf16, const fs::path& disk) {
  EngineOptions options{.stage = stage, .gradient_clipping = 1, .share_parameters = false};
  if (bf16) options.dtype = Dtype::bf16;
  options.offload.path = disk.string();
  options.offload.piece_numel = 8192;
  options.offload.buffer_count = 2;
  options.offload.block_bytes = 4096;
  return options;
}

constexpr int kSteps = 7, kGrows = 3;  // the first step of longer batches
constexpr int64_t kFewRows = 64, kManyRows = 1024;

struct Course {
  std::vector<double> losses;
  std::vector<int64_t> peaks;  // of each step, this rank's own
  std::vector<std::string> notes;
  std::map<std::string, std::vector<float>> parameters;  // no tensors: those are measured
  int64_t moves = 0, moved_bytes = 0, written_bytes = 0;
};

struct Budget {
  int64_t memory_bytes = 0;
  MovableStates movable = {};
};

/// The last rank's batches grow, where `grows`.
Course train_net(const Mesh& mesh, const EngineOptions& options, const std::optional<Budget>& budget,
                 const fs::path& directory, bool grows = true) {
  torch::manual_seed(5);
  DeepNet net = lazily([] { return DeepNet(); });
  Engine engine(*net, AdamW{.lr = 1e-3}, options, mesh);
  std::optional<AdaptivePlacement> placement;
  if (budget)
    placement.emplace(engine, options,
                      TierRequest{.movable = budget->movable, .memory_bytes = budget->memory_bytes},
                      directory / "moved");
  Course course;
  const at::ScalarType dtype = options.dtype ? at::kBFloat16 : at::kFloat;
  for (int step = 0; step < kSteps; ++step) {
    reset_memory_peak();
    torch::manual_seed(100 + step);
    const bool is_long = grows && step >= kGrows && mesh.rank() == mesh.size() - 1;
    {
      const at::Tensor x = torch::randn({is_long ? kManyRows : kFewRows, kWidth}).to(dtype);
      const at::Tensor loss = engine.forward([&] { return net->loss(x).to(at::kFloat); });
      course.losses.push_back(loss.item<double>());
      engine.backward(loss);
    }
    engine.step();
    course.peaks.push_back(memory_in_use().peak_bytes);
    course.notes.push_back(placement ? placement->after_step() : "");
  }
  for (const std::string& name : engine.parameter_names()) {
    const at::Tensor values = engine.full_parameter(name);
    course.parameters[name].assign(values.const_data_ptr<float>(),
                                   values.const_data_ptr<float>() + values.numel());
  }
  course.written_bytes = engine.stats().disk.written_bytes;
  if (placement) {
    course.moves = placement->moves();
    course.moved_bytes = placement->moved_bytes();
  }
  EXPECT_EQ(engine.stats().steps, kSteps);
  EXPECT_FALSE(fs::exists(directory / "moved")) << "what states passed through is gone";
  return course;
}

/// Of steps [begin, end), on the rank that took the most.
int64_t most(const Mesh& mesh, const Course& of, int begin, int end) {
  const int64_t own = *std::max_element(of.peaks.begin() + begin, of.peaks.begin() + end);
  const at::Tensor value = torch::full({1}, static_cast<double>(own), at::kDouble);
  mesh.world().all_reduce(value, Group::Reduce::Max, "peak").wait();
  return static_cast<int64_t>(value.item<double>());
}

void expect_same(const Course& a, const Course& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, values] : a.parameters) EXPECT_TRUE(values == b.parameters.at(name)) << name;
}

class AdaptivePlacements : public ::testing::TestWithParam<int> {};

TEST_P(AdaptivePlacements, StatesMoveWhenActivationsGrowAndTheBitsStay) {
  const int ranks = GetParam();
  const DiskDirectory disk;
  run_ranks(ranks, [&](const Mesh& mesh) {
    use_training_allocator();
    for (const auto& [stage, bf16] : std::vector<std::pair<int, bool>>{{1, false}, {3, true}}) {
      const std::string what = "stage " + std::to_string(stage);
      const EngineOptions options = options_of(stage, bf16, disk.path());
      const Course plain = train_net(mesh, options, std::nullopt, disk.path());
      const int64_t small = most(mesh, plain, 0, kGrows), large = most(mesh, plain, kGrows, kSteps);
      ASSERT_GT(large, small + (small / 10)) << what;
      const int64_t budget = large - large / 32;
      const Course adapted =
          train_net(mesh, options, Budget{budget, {.master = true, .optimizer = true}}, disk.path());
      expect_same(adapted, plain);
      // What the plan is wrong by may need a second move; then it stays.
      EXPECT_GE(adapted.moves, 1) << what;
      EXPECT_LE(adapted.moves, 2) << what;
      for (int step = 0; step < kSteps; ++step) {
        const std::string& note = adapted.notes[static_cast<size_t>(step)];
        if (step < kGrows || step > kGrows + 1) {
          EXPECT_EQ(note, "") << what << " step " << step;
        }
        if (step > kGrows + 1) {
          EXPECT_LE(adapted.peaks[static_cast<size_t>(step)], budget) << what << " step " << step;
        }
      }
      const std::string& note = adapted.notes[kGrows];
      EXPECT_NE(note.find("more than"), note.npos) << note;
      EXPECT_NE(note.find("; moved "), note.npos) << note;
      EXPECT_EQ(note.find('\n'), note.npos) << note;
      EXPECT_GT(adapted.moved_bytes, 0);
      EXPECT_GT(adapted.written_bytes, 0) << "steps go through the disk from then on";
    }
  });
}

TEST_P(AdaptivePlacements, WhereNothingFitsTheErrorSaysWhatWasMeasured) {
  const DiskDirectory disk;
  run_ranks(GetParam(), [&](const Mesh& mesh) {
    use_training_allocator();
    const EngineOptions options = options_of(1, false, disk.path());
    const Course plain = train_net(mesh, options, std::nullopt, disk.path(), /*grows=*/false);
    const int64_t small = most(mesh, plain, 0, kSteps);
    // Enough as long as batches are short; nothing may move.
    const Budget budget{small + small / 50, {.optimizer = true}};
    EXPECT_NO_THROW(train_net(mesh, options, budget, disk.path(), /*grows=*/false));
    EngineOptions nowhere = options;
    nowhere.offload.path.clear();
    EXPECT_ERROR(train_net(mesh, nowhere, budget, disk.path()), Config, "a step took ");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AdaptivePlacements, ::testing::Values(1, 2));

// Something grows beside the model in the third step; the run goes on within its memory, and elsewhere.
TEST(AdaptivePlacementRuns, GoOnWithinTheirMemory) {
  const SmallRun small;
  const DiskDirectory disk;
  const std::vector<std::string> wide{"model.width=192",           "model.heads=4",
                                      "zero_optimization.stage=1", "bf16.enabled=true",
                                      "run.eval_batches=1",        "checkpoint.save_at_end=true",
                                      "gradient_clipping=0.5"};
  const Config plain = small.config(2, wide, "plain");
  const int64_t all = plan_from_config(plain, trained_spec(plain), 2).total_bytes(1);
  std::vector<std::string> within = wide;
  for (const std::string& key :
       {std::string("offload.optimizer=auto"), "offload.memory=" + std::to_string(all + all / 20),
        "offload.path=" + disk.path().string(), std::string("offload.buffer_count=2"),
        std::string("offload.piece_numel=8192")})
    within.push_back(key);
  train_on(2, plain);
  const fs::path lines = small.path() / "lines.txt";
  std::FILE* const progress = std::fopen(lines.c_str(), "w");
  ASSERT_NE(progress, nullptr);
  std::setvbuf(progress, nullptr, _IONBF, 0);
  at::Tensor beside;
  int64_t within_budget = 0;
  TrainOptions options{.progress = progress, .pause_after = 4};
  options.on_step = [&](const StepReport& report) {
    if (report.step == 2) within_budget = all + all / 20 - memory_in_use().peak_bytes;
    if (report.step == 3) beside = at::empty({within_budget + all / 20}, at::kByte);
  };
  const Config config = small.config(2, within, "within");
  run_ranks(2, [&](const Mesh& mesh) {
    use_training_allocator();
    train(config, mesh, options);
    EXPECT_FALSE(fs::exists(small.path() / "within" / "moved-states"));
  });
  std::fclose(progress);
  train_on(2, config, {.resume = "auto"});
  EXPECT_EQ(course_of(small.path() / "within"), course_of(small.path() / "plain"));
  EXPECT_EQ(newest_values(small.path() / "within"), newest_values(small.path() / "plain"));
  std::ifstream in(lines);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(text.find("a step took "), text.npos) << text;
  EXPECT_NE(text.find("; moved "), text.npos) << text;
}

}  // namespace
}  // namespace zero

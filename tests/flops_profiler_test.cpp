// Floating-point operations of a step, by module.
#include "train/flops_profiler.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <sstream>

#include "seam/dispatch.h"
#include "support/expect_error.h"
#include "support/small_run.h"
#include "zero/error.h"

namespace zero::training {
namespace {

namespace fs = std::filesystem;
using testing::SmallRun;
using testing::train_on;

std::string profile_in(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const ModuleFlops& named(const std::vector<ModuleFlops>& modules, const std::string& name) {
  for (const ModuleFlops& module : modules)
    if (module.name == name) return module;
  throw std::runtime_error("no module " + name);
}

struct Nested : torch::nn::Module {
  torch::nn::Linear in{8, 16}, out{16, 4};
  torch::nn::Sequential middle{torch::nn::Linear(16, 16), torch::nn::ReLU()};
  Nested() {
    register_module("in", in);
    register_module("middle", middle);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) { return out(middle->forward(at::relu(in(x)))); }
};

TEST(FlopsProfiler, CountsForwardAndBackwardByModule) {
  Nested model;
  const at::Tensor x = at::randn({5, 8});
  FlopsProfiler profiler(model);
  for (int micro = 0; micro < 3; ++micro) {
    const detail::InterceptOperators scope;
    model.forward(x).sum().backward();
  }
  const auto modules = profiler.modules();
  constexpr double kProduct = 3 * 2.0 * 5;  // micro-batches, a multiply-add, rows
  EXPECT_EQ(modules.size(), 5u);
  EXPECT_EQ(named(modules, "in").forward_flops, kProduct * 8 * 16);
  EXPECT_EQ(named(modules, "in").backward_flops, kProduct * 8 * 16) << "what comes in needs no gradient";
  EXPECT_EQ(named(modules, "middle.0").forward_flops, kProduct * 16 * 16);
  EXPECT_EQ(named(modules, "middle.0").backward_flops, 2 * kProduct * 16 * 16);
  EXPECT_EQ(named(modules, "middle").backward_flops, named(modules, "middle.0").backward_flops);
  EXPECT_EQ(named(modules, "out").backward_flops, 2 * kProduct * 16 * 4);
  const ModuleFlops& all = named(modules, "");
  EXPECT_EQ(all.parameters, 8 * 16 + 16 + 16 * 16 + 16 + 16 * 4 + 4);
  EXPECT_EQ(all.forward_flops, kProduct * (8 * 16 + 16 * 16 + 16 * 4));
  EXPECT_EQ(named(modules, "middle.0").depth, 2);
  double own_s = 0;
  for (const char* name : {"in", "middle", "out"}) own_s += named(modules, name).forward_s;
  EXPECT_GT(own_s, 0);
  EXPECT_LE(own_s, all.forward_s * (1 + 1e-9));
}

TEST(FlopsProfiler, SeesNothingOnceItIsGone) {
  torch::nn::Linear model(4, 4);
  auto profiler = std::make_unique<FlopsProfiler>(*model);
  profiler.reset();
  const detail::InterceptOperators scope;
  EXPECT_EQ(model->forward(at::ones({1, 4})).numel(), 4);
}

// Two layers of width 16 with 2 heads, a context of 8 and a vocabulary of 64.
TEST(FlopsProfiler, ARunsStepIsThatOfItsFormulaAtEveryStageWithTheSameBits) {
  const SmallRun small;
  const fs::path file = small.path() / "flops.txt";
  const auto run = [&](int stage, std::vector<std::string> more, const std::string& name) {
    more.push_back("run.steps=3");
    more.push_back("zero_optimization.stage=" + std::to_string(stage));
    return small.config(2, more, name);
  };
  const Config plain = run(3, {}, "plain");
  train_on(2, plain);
  std::string first;
  for (const int stage : {0, 3}) {
    const Config config = run(stage,
                              {"flops_profiler.enabled=true", "flops_profiler.profile_step=2",
                               "flops_profiler.output_file=" + file.string()},
                              "stage" + std::to_string(stage));
    train_on(2, config);
    const auto expected = testing::metrics_of(plain.run.directory),
               got = testing::metrics_of(config.run.directory);
    ASSERT_EQ(expected.size(), got.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i].value("loss", 0.0), expected[i].value("loss", 0.0)) << stage;
    const std::string text = profile_in(file);
    ASSERT_TRUE(text.starts_with("FLOPs of step 2 on rank 0 of 2, ")) << text;
    // 6 samples of 8 tokens a rank: the products of two blocks, their attention, and the head with its
    // gradients, which the loss makes at once.
    const double tokens = 6 * 8, block = 2 * tokens * 12 * 16 * 16 + 4 * tokens * 8 * 16;
    const double head = 3 * 2 * tokens * 16 * 64;
    char shown[32];
    std::snprintf(shown, sizeof shown, "%.0fk", (2 * block + head) / 1000);
    EXPECT_NE(text.find(shown), std::string::npos) << shown << " in\n" << text;
    EXPECT_NE(text.find("h.1.mlp.c_fc"), std::string::npos) << text;
  }
  std::ofstream(file) << "mine\n";
  const Config refused = small.config(
      1, {"flops_profiler.enabled=true", "flops_profiler.output_file=" + file.string()}, "other");
  const torch::nn::Linear model(2, 2);
  EXPECT_ERROR(ProfiledStep(refused, *model, 1), Config, "a FLOPs profile");
  EXPECT_EQ(profile_in(file), "mine\n");
}

TEST(FlopsProfiler, DepthAndDetailChooseRows) {
  std::vector<ModuleFlops> modules(4);
  modules[1] = {.name = "a", .depth = 1, .parameters = 10, .forward_flops = 5};
  modules[2] = {.name = "b", .depth = 1, .parameters = 20, .forward_flops = 1, .forward_s = 1};
  modules[3] = {.name = "b.c", .depth = 2, .parameters = 20};
  FlopsProfilerConfig config;
  const StepReport report{.step = 7};
  const auto has = [&](const char* part) {
    return flops_text(config, modules, report, 1).find(part) != std::string::npos;
  };
  EXPECT_TRUE(has("FLOPs of step 7 on rank 0 of 1") && has("  b.c"));
  EXPECT_TRUE(has("b 20") && has("a 5") && has("b 1000.0 ms")) << flops_text(config, modules, report, 1);
  EXPECT_FALSE(has("a 10")) << "one module of each depth";
  config.top_modules = 2;
  EXPECT_TRUE(has("a 10"));
  config.module_depth = 1;
  EXPECT_FALSE(has("b.c"));
  config.detailed = false;
  EXPECT_FALSE(has("backward FLOPs"));
}

TEST(FlopsProfiler, AStepThatNeverComesIsSaid) {
  Config config;
  config.run.steps = 10;
  config.logging.flops = {.enabled = true, .profile_step = 4};
  const torch::nn::Linear model(2, 2);
  const ProfiledStep profiled(config, *model, 1);
  EXPECT_EQ(profiled.never_comes(3), "");
  EXPECT_EQ(profiled.never_comes(4),
            "flops_profiler: no step is profiled: profile_step is 4, and the steps of this run are 5 to 10");
  config.logging.flops.output_file = "/no/such/directory/file";
  EXPECT_ERROR(ProfiledStep(config, *model, 1), Config, "expected a file in a directory that exists");
}

}  // namespace
}  // namespace zero::training

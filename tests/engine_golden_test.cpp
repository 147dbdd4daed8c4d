// The sharded engine against ten steps that PyTorch itself recorded, and what lazy construction costs in
// memory.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <fstream>

#include "support/golden_gpt2.h"
#include "support/ranks.h"
#include "support/sanitized.h"
#include "zero/engine.h"
#include "zero/gpt2.h"
#include "zero/lazy.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

zero::OptimizerSpec optimizer_of(const golden::Run& run) {
  if (run.optimizer == "adamw")
    return zero::AdamW{.lr = run.lr,
                       .beta1 = run.beta1,
                       .beta2 = run.beta2,
                       .eps = run.eps,
                       .weight_decay = run.weight_decay};
  if (run.optimizer == "adam")
    return zero::Adam{.lr = run.lr,
                      .beta1 = run.beta1,
                      .beta2 = run.beta2,
                      .eps = run.eps,
                      .weight_decay = run.weight_decay};
  return zero::SGD{.lr = run.lr, .momentum = run.momentum, .weight_decay = run.weight_decay};
}

void expect_golden(const zero::Mesh& mesh, const golden::Run& run, const zero::Gpt2Shape& shape, int stage,
                   int accumulation) {
  auto model = zero::lazily([&] {
    zero::Gpt2 built(shape);
    golden::initialise(*built);
    return built;
  });
  zero::EngineOptions options{
      .stage = stage, .accumulation_steps = accumulation, .gradient_clipping = run.clip};
  options.group_numel = 1000;
  zero::Engine engine(*model, optimizer_of(run), options, mesh);
  const int64_t rows = run.global_batch / (mesh.size() * accumulation);
  for (size_t step = 0; step < run.losses.size(); ++step) {
    const golden::Batch batch = golden::batch(static_cast<int64_t>(step), run.global_batch, shape);
    Tensor mean = torch::zeros({1}, torch::kDouble);
    for (int i = 0; i < accumulation; ++i) {
      const int64_t begin = (i * mesh.size() + mesh.rank()) * rows;
      Tensor loss = engine.forward([&] {
        return model->loss(batch.tokens.narrow(0, begin, rows).contiguous(),
                           batch.targets.narrow(0, begin, rows).contiguous());
      });
      mean += loss.detach().to(torch::kDouble) / (mesh.size() * accumulation);
      engine.backward(loss);
    }
    mesh.world().all_reduce(mean, zero::Group::Reduce::Sum, "loss").wait();
    const double norm = engine.step().clip().norm_before;
    const std::string what =
        run.optimizer + ", stage " + std::to_string(stage) + ", step " + std::to_string(step);
    EXPECT_NEAR(mean.item<double>(), run.losses[step], 1e-5 * run.losses[step]) << what;
    EXPECT_NEAR(norm, run.gradient_norms[step], 1e-5 * run.gradient_norms[step]) << what;
  }
}

TEST(Golden, EveryStageMeetsPyTorchsLossesAndNorms) {
  const auto recording = golden::recording();
  for (int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](const zero::Mesh& mesh) {
      for (int stage = 0; stage <= 3; ++stage)
        for (int accumulation : {1, 3})
          expect_golden(mesh, recording.run("adamw", 36), recording.shape, stage, accumulation);
      expect_golden(mesh, recording.run("adam", 12), recording.shape, 3, 1);
      expect_golden(mesh, recording.run("sgd", 12), recording.shape, 2, 1);
    });
  }
}

int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(key, 0) == 0) return std::stoll(line.substr(key.size() + 1)) * 1024;
  return -1;
}

TEST(Lazy, PeakMemoryIsTheShardsAndOneUnit) {
  if (kIsSanitized) GTEST_SKIP() << "sanitizers need memory of their own";
  static constexpr int kLayers = 12;
  static constexpr int64_t kWidth = 2048, kUnitBytes = (kWidth * kWidth + kWidth) * 4;
  run_ranks(4, [](const zero::Mesh& mesh) {
    const int64_t before = status_bytes("VmRSS:"), files_before = status_bytes("RssFile:");
    auto model = zero::lazily([] {
      torch::nn::Sequential net;
      for (int i = 0; i < kLayers; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
      return net;
    });
    zero::EngineOptions options{.stage = 3};
    options.share_parameters = false;  // pages of common memory count for every rank that touches them
    zero::Engine engine(*model, zero::SGD{.lr = 1e-3}, options, mesh);
    // Pages of programs and libraries come by as many as the system has in one piece, and may be dropped.
    const int64_t files = status_bytes("RssFile:") - files_before;
    const int64_t peak = status_bytes("VmHWM:") - before - files;
    const int64_t allowed = kLayers * kUnitBytes / 4 + kUnitBytes + (24LL << 20);
    EXPECT_LE(peak, allowed) << "eager construction takes " << kLayers * kUnitBytes;
  });
}
}  // namespace

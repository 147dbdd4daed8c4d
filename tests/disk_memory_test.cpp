// A model that is made for a disk, trained, saved and loaded there: no tensors of the whole are in memory.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <filesystem>

#include "support/checkpoint_files.h"
#include "support/disk_directory.h"
#include "support/ranks.h"
#include "zero/cpu_allocator.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace {
using namespace zero::testing;
namespace fs = std::filesystem;

constexpr int64_t kDiskWidth = 256, kDiskLayers = 40;
constexpr int64_t kValuesBytes = kDiskLayers * kDiskWidth * (kDiskWidth + 1) * 4;

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int64_t i = 0; i < kDiskLayers; ++i) layers->push_back(torch::nn::Linear(kDiskWidth, kDiskWidth));
  }
  at::Tensor loss(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::LinearImpl>()->forward(x).tanh();
    return x.square().mean();
  }
  torch::nn::ModuleList layers{register_module("layers", torch::nn::ModuleList())};
};
TORCH_MODULE(Stack);

struct DiskStack {
  DiskStack(const zero::Mesh& mesh, const fs::path& disk)
      : model((torch::manual_seed(3), zero::lazily([] { return Stack(); }))),
        engine(*model, zero::AdamW{.lr = 1e-2}, options(disk), mesh) {}
  static zero::EngineOptions options(const fs::path& disk) {
    zero::EngineOptions options{.stage = 3, .share_parameters = false};
    options.group_numel = 1;
    options.budget_bytes = 0;
    options.tiers = {.parameter = zero::Tier::Disk,
                     .gradient = zero::Tier::Disk,
                     .master = zero::Tier::Disk,
                     .optimizer = zero::Tier::Disk};
    options.offload = {.path = disk, .buffer_count = 2, .piece_numel = 8192, .block_bytes = 4096};
    return options;
  }
  void step(int number) {
    torch::manual_seed(number);
    const at::Tensor x = torch::randn({8, kDiskWidth});
    engine.backward(engine.forward([&] { return model->loss(x); }));
    engine.step();
  }
  Stack model;
  zero::Engine engine;
};

class DiskMemory : public ::testing::TestWithParam<int> {};

TEST_P(DiskMemory, HoldsNoWholeModel) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    zero::use_training_allocator();
    const auto expect_little = [&](const char* what) {
      EXPECT_LT(zero::cpu_allocator_stats().peak_bytes, kValuesBytes / 3) << what;
      zero::reset_cpu_allocator_peak();
    };
    fs::path saved, after;
    {
      DiskStack run(mesh, folder.path());
      expect_little("made");
      run.step(0);
      EXPECT_GT(zero::cpu_allocator_stats().peak_bytes, 0);
      expect_little("stepped");
      saved = run.engine.save(folder.path() / "first");
      expect_little("saved");
      run.step(1);
      after = run.engine.save(folder.path() / "second");
    }
    DiskStack other(mesh, folder.path());
    zero::reset_cpu_allocator_peak();
    other.engine.load(saved);
    expect_little("loaded");
    other.step(1);
    const fs::path again = other.engine.save(folder.path() / "again");
    if (mesh.rank() == 0) {
      EXPECT_TRUE(same(read_all(after), read_all(again)));
    }
    mesh.world().barrier("compared");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DiskMemory, ::testing::Values(1, 2));

}  // namespace

// Saving and resuming: the same bits on the same ranks, the same values on others, and nothing lost when it
// fails.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <filesystem>
#include <fstream>

#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/checkpoint.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/lazy.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
namespace fs = std::filesystem;

struct Net : torch::nn::Module {
  SmallNet net{13, 6, 2};
  torch::nn::BatchNorm1d norm{6};
  torch::nn::Linear frozen{6, 6};
  Net() {
    register_module("net", net);
    register_module("norm", norm);
    register_module("frozen", frozen);
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
  }
  Tensor loss(const Batch& batch) {
    Tensor x = torch::dropout(net->embedding(batch.tokens), 0.3, true);
    x = frozen(norm(x.flatten(0, 1)));
    return net->loss(batch.tokens, batch.targets) + x.square().mean();
  }
};

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("zero-engine-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<double> train(zero::Engine& engine, Net& model, const zero::Mesh& mesh, int from, int to) {
  std::vector<double> losses;
  for (int step = from; step < to; ++step) {
    Batch batch = batch_of(step, 12, 13).rows(mesh.rank() * (12 / mesh.size()), 12 / mesh.size());
    Tensor loss = engine.forward([&] { return model.loss(batch); });
    engine.backward(loss);
    engine.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

zero::EngineOptions options_for(int stage) {
  zero::EngineOptions options{.stage = stage,
                              .dtype = stage == 2 ? std::optional(torch::kBFloat16) : std::nullopt};
  options.group_numel = 50;
  options.share_parameters = stage != 0;  // replicas, too
  return options;
}

TEST(EngineCheckpoint, ResumesWithTheSameBits) {
  Folder folder;
  for (int stage = 0; stage <= 3; ++stage) {
    const fs::path directory = folder.path() / std::to_string(stage);
    run_ranks(2, [&](const zero::Mesh& mesh) {
      torch::manual_seed(1);
      auto model = std::make_shared<Net>();
      zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, options_for(stage), mesh);
      torch::manual_seed(100 + mesh.rank());
      train(engine, *model, mesh, 0, 3);
      const fs::path saved = engine.save(directory, R"({"position": 7})");
      EXPECT_EQ(saved, zero::latest_checkpoint(directory));
      const auto expected = train(engine, *model, mesh, 3, 6);

      torch::manual_seed(55);
      auto other = zero::lazily([] { return std::make_shared<Net>(); });
      zero::Engine resumed(*other, zero::AdamW{.lr = 1e-2}, options_for(stage), mesh);
      EXPECT_EQ(resumed.load(saved), R"({"position":7})");
      EXPECT_EQ(resumed.stats().steps, 3);
      EXPECT_EQ(train(resumed, *other, mesh, 3, 6), expected) << "stage " << stage;
      for (const std::string& name : engine.parameter_names())
        EXPECT_TRUE(torch::equal(resumed.full_parameter(name), engine.full_parameter(name))) << name;
      EXPECT_TRUE(torch::equal(other->norm->running_mean, model->norm->running_mean));
    });
  }
}

TEST(EngineCheckpoint, OptimizerMomentsAndStepCountsComeBack) {
  Folder folder;
  const std::vector<std::pair<std::string, zero::OptimizerSpec>> specs{
      {"sgd", zero::SGD{.lr = 1e-2, .momentum = 0.9}},
      {"lion", zero::Lion{}},
      {"torch", zero::TorchOptimizer{[](std::vector<torch::optim::OptimizerParamGroup> groups)
                                         -> std::unique_ptr<torch::optim::Optimizer> {
         return std::make_unique<torch::optim::RMSprop>(std::move(groups),
                                                        torch::optim::RMSpropOptions(1e-3));
       }}}};
  for (const auto& [name, spec] : specs) {
    const fs::path directory = folder.path() / name;
    run_ranks(2, [&](const zero::Mesh& mesh) {
      torch::manual_seed(1);
      auto model = std::make_shared<Net>();
      zero::Engine engine(*model, spec, options_for(3), mesh);
      torch::manual_seed(100 + mesh.rank());
      train(engine, *model, mesh, 0, 2);
      const fs::path saved = engine.save(directory);
      const auto expected = train(engine, *model, mesh, 2, 4);
      auto other = std::make_shared<Net>();
      zero::Engine resumed(*other, spec, options_for(3), mesh);
      resumed.load(saved);
      EXPECT_EQ(train(resumed, *other, mesh, 2, 4), expected) << name;
    });
  }
}

TEST(EngineCheckpoint, LoadsOnOtherWorldsAndStages) {
  Folder folder;
  run_ranks(3, [&](const zero::Mesh& mesh) {
    torch::manual_seed(1);
    auto model = std::make_shared<Net>();
    zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, options_for(3), mesh);
    train(engine, *model, mesh, 0, 2);
    engine.save(folder.path());
    for (const std::string& name : engine.parameter_names()) {
      Tensor value = engine.full_parameter(name);
      if (mesh.rank() == 0) torch::save(value, (folder.path() / (name + ".pt")).string());
    }
    Tensor moments = engine.full_optimizer_state("net.layers.0.up.weight", "exp_avg_sq");
    if (mesh.rank() == 0) torch::save(moments, (folder.path() / "moments.pt").string());
  });
  for (int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](const zero::Mesh& mesh) {
      for (int stage : {0, 1, 3}) {
        auto model = zero::lazily([] { return std::make_shared<Net>(); });
        zero::EngineOptions options{.stage = stage};
        zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, options, mesh);
        engine.load(zero::latest_checkpoint(folder.path()));
        for (const std::string& name : engine.parameter_names()) {
          Tensor expected;
          torch::load(expected, (folder.path() / (name + ".pt")).string());
          EXPECT_TRUE(torch::equal(engine.full_parameter(name), expected)) << name << " on " << ranks;
        }
        Tensor moments;
        torch::load(moments, (folder.path() / "moments.pt").string());
        EXPECT_TRUE(
            torch::equal(engine.full_optimizer_state("net.layers.0.up.weight", "exp_avg_sq"), moments));
        train(engine, *model, mesh, 2, 3);
      }
    });
  }
}

TEST(EngineCheckpoint, AnotherModelIsRefusedAndNothingChanges) {
  Folder folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    SmallNet small(13, 6, 2), large(13, 8, 2);
    zero::Engine engine(*small, zero::AdamW{}, {.stage = 3}, mesh);
    const fs::path saved = engine.save(folder.path());
    zero::Engine other(*large, zero::AdamW{}, {.stage = 3}, mesh);
    const Tensor before = other.full_parameter("norm.weight");
    std::string message;
    try {
      other.load(saved);
    } catch (const zero::Error& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("shape"), std::string::npos) << message;
    EXPECT_TRUE(torch::equal(other.full_parameter("norm.weight"), before));
  });
}

TEST(EngineCheckpoint, AFailureOnOneRankFailsAllAndKeepsTheOld) {
  Folder folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    SmallNet model(13, 6, 2);
    zero::Engine engine(*model, zero::AdamW{}, {.stage = 3}, mesh);
    const fs::path saved = engine.save(folder.path());
    // A file where the directory should be.
    const fs::path blocked = folder.path() / "file";
    if (mesh.rank() == 0) std::ofstream(blocked) << "x";
    mesh.world().barrier("file");
    std::string message;
    try {
      engine.save(blocked);
    } catch (const zero::Error& error) {
      message = error.what();
    }
    EXPECT_NE(message, "") << "rank " << mesh.rank();
    EXPECT_NO_THROW(zero::CheckpointReader(saved).verify());
    engine.save(folder.path());
  });
}
}  // namespace

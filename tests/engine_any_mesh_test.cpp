// From any stage on any number of ranks to any other: the run goes on as if it had not been interrupted, and
// every rank reads its part only.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <cstring>

#include "support/ranks.h"
#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace {
using namespace zero::testing;
namespace fs = std::filesystem;

constexpr int kBefore = 3, kAfter = 3, kRows = 12;

struct Way {
  int stage, ranks, group = 0;  // group: ranks of a hybrid's shards
  std::string name() const {
    return "stage" + std::to_string(stage) + "-ranks" + std::to_string(ranks) + "-group" +
           std::to_string(group);
  }
};

zero::EngineOptions any_mesh_options(const Way& way) {
  zero::EngineOptions options{.stage = way.stage, .gradient_clipping = 1, .shard_group_ranks = way.group};
  options.group_numel = 50;
  return options;
}

// Losses of the whole batch, the same on all ranks.
std::vector<double> losses_from(zero::Engine& engine, SmallNet& model, const zero::Mesh& mesh, int from,
                                int to) {
  std::vector<double> losses;
  for (int step = from; step < to; ++step) {
    const int64_t rows = kRows / mesh.size();
    const Batch batch = batch_of(step, kRows, 13).rows(mesh.rank() * rows, rows);
    torch::Tensor loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
    engine.backward(loss);
    engine.step();
    loss = loss.detach().to(torch::kDouble).reshape({1});
    mesh.world().all_reduce(loss, zero::Group::Reduce::Sum, "loss").wait();
    losses.push_back(loss.item<double>() / mesh.size());
  }
  return losses;
}

// Saves after some steps, goes on, and gives the losses that an interrupted run must have.
std::vector<double> uninterrupted(const fs::path& folder, const Way& way) {
  const auto results = run_ranks(way.ranks, [&](const zero::Mesh& mesh) {
    torch::manual_seed(1);
    SmallNet model(13, 6, 2);
    zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, any_mesh_options(way), mesh);
    losses_from(engine, model, mesh, 0, kBefore);
    engine.begin_save(folder / way.name());
    const auto losses = losses_from(engine, model, mesh, kBefore, kBefore + kAfter);
    engine.finish_save();
    hand_back(torch::tensor(losses, torch::kDouble));
  });
  const torch::Tensor losses = tensor_from_bytes(results[0].bytes, torch::kDouble);
  return {losses.const_data_ptr<double>(), losses.const_data_ptr<double>() + losses.numel()};
}

// Sums are taken in the same order where the number of ranks, and of those that share a shard, is the same.
bool has_same_bits(const Way& from, const Way& to) {
  return from.ranks == to.ranks && from.group == to.group;
}

TEST(EngineAnyMesh, GoesOnAsIfUninterrupted) {
  const TemporaryDirectory folder;
  std::vector<Way> ways;
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int stage = 0; stage <= 3; ++stage) ways.push_back({stage, ranks});
  ways.push_back({3, 4, 2});
  ways.push_back({1, 4, 2});
  std::vector<std::vector<double>> expected;
  for (const Way& way : ways) expected.push_back(uninterrupted(folder.path(), way));

  // Every way to save with every way to load.
  int changes = 0;
  for (const Way& to : ways) {
    run_ranks(to.ranks, [&](const zero::Mesh& mesh) {
      for (size_t i = 0; i < ways.size(); ++i) {
        const Way& from = ways[i];
        SmallNet model = zero::lazily([] { return SmallNet(13, 6, 2); });
        zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, any_mesh_options(to), mesh);
        engine.load(zero::latest_checkpoint(folder.path() / from.name()));
        EXPECT_EQ(engine.stats().steps, kBefore);
        const auto losses = losses_from(engine, model, mesh, kBefore, kBefore + kAfter);
        for (size_t step = 0; step < losses.size(); ++step) {
          const double error = std::abs(losses[step] - expected[i][step]) / std::abs(expected[i][step]);
          EXPECT_LE(error, has_same_bits(from, to) ? 0 : 1e-5)
              << from.name() << " to " << to.name() << ", step " << step;
        }
      }
    });
  }
  for (size_t i = 0; i < ways.size(); ++i) changes += expected[i][0] != expected[i][kAfter - 1];
  EXPECT_EQ(changes, static_cast<int>(ways.size())) << "nothing was trained";
}

struct Wide : torch::nn::Module {
  torch::nn::Linear up{torch::nn::LinearOptions(1024, 2048).bias(false)},
      down{torch::nn::LinearOptions(2048, 1024).bias(false)};
  Wide() {
    register_module("up", up);
    register_module("down", down);
  }
};

TEST(EngineAnyMeshBytes, RanksReadTheirPartOnly) {
  const TemporaryDirectory folder;
  const int64_t kinds = 3, bytes = kinds * 2 * 1024 * 2048 * 4;  // values and two moments
  run_ranks(2, [&](const zero::Mesh& mesh) {
    Wide model;
    zero::Engine engine(model, zero::AdamW{}, {.stage = 2}, mesh);
    engine.save(folder.path());
    EXPECT_EQ(engine.stats().loaded_bytes, 0);
  });
  for (const auto& [ranks, stage] : {std::pair{1, 3}, {2, 3}, {3, 1}, {4, 3}, {4, 0}}) {
    run_ranks(ranks, [&, ranks = ranks, stage = stage](const zero::Mesh& mesh) {
      Wide model;
      zero::EngineOptions options{.stage = stage};
      options.share_parameters = stage != 0;  // replicas read everything
      zero::Engine engine(model, zero::AdamW{}, options, mesh);
      engine.load(zero::latest_checkpoint(folder.path()));
      const int64_t part = stage == 0 ? bytes : bytes / ranks;
      // Of every tensor the rest of a checksum block at either end, in each of the two files.
      const int64_t slack = kinds * 2 * 2 * 2 * zero::kChecksumBytes + (64 << 10);
      EXPECT_LE(engine.stats().loaded_bytes, std::min(bytes + (64 << 10), part + slack)) << ranks << " ranks";
      EXPECT_GE(engine.stats().loaded_bytes, part) << ranks << " ranks";
    });
  }
}

}  // namespace

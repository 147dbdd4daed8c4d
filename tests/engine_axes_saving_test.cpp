// Checkpoints of an engine on a mesh with a tensor-parallel axis: what is each rank's own, and frozen
// parameters that are left out though several ranks hold a slice each.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <filesystem>
#include <string>

#include "support/cut_net.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/mesh.h"

namespace {

using namespace zero::testing;
using zero::Mesh;
namespace fs = std::filesystem;

RankOptions axes(int dp, int tp) {
  RankOptions options;
  options.mesh.axes = {{"dp", dp}, {"tp", tp}};
  return options;
}

/// An engine over a CutNet, of which this rank has its slice.
struct CutEngine {
  CutEngine(const Mesh& mesh, int stage) : net(mesh.group("tp").rank(), mesh.group("tp").size()) {
    begin(mesh, stage);
  }
  /// With `weight` and `bias` frozen, and what else `change` does to the net before.
  CutEngine(const Mesh& mesh, int stage, const std::function<void(CutNet&)>& change)
      : net(mesh.group("tp").rank(), mesh.group("tp").size()) {
    torch::NoGradGuard no_grad;
    change(net);
    net->weight.set_requires_grad(false);
    net->bias.set_requires_grad(false);
    begin(mesh, stage);
  }
  void begin(const Mesh& mesh, int stage) {
    zero::EngineOptions options{.stage = stage, .parts = parts_of(net)};
    engine = std::make_unique<zero::Engine>(*net, zero::AdamW{.lr = 0.05}, options, mesh);
  }

  CutNet net;
  std::unique_ptr<zero::Engine> engine;
};

fs::path only_checkpoint(const TemporaryDirectory& folder) { return zero::latest_checkpoint(folder.path()); }

// Ranks 0 to 3 of two by two save; what each would draw next comes back.
std::vector<torch::Tensor> save_streams(const TemporaryDirectory& folder) {
  const auto results = run_ranks(
      4,
      [&](const Mesh& mesh) {
        CutEngine cut(mesh, 2);
        torch::manual_seed(500 + mesh.rank());
        torch::randn({3 + mesh.rank()});  // in the middle of a stream
        cut.engine->save(folder.path());
        hand_back(torch::randn({40}));
      },
      axes(2, 2));
  std::vector<torch::Tensor> streams;
  for (const RankResult& result : results) streams.push_back(tensor_from_bytes(result.bytes, at::kFloat));
  return streams;
}

TEST(EngineAxesSaving, EachRankOfTheMeshGetsItsOwnRandomStreamBack) {
  const TemporaryDirectory folder;
  const std::vector<torch::Tensor> streams = save_streams(folder);
  for (size_t i = 1; i < streams.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(torch::equal(streams[i], streams[j])) << i << " " << j;
  // Ranks are numbered in the mesh: so many ranks along other axes have the same numbers.
  for (const RankOptions& options : {axes(2, 2), axes(1, 4), axes(4, 1)})
    run_ranks(
        4,
        [&](const Mesh& mesh) {
          CutEngine cut(mesh, 1);
          torch::manual_seed(7);
          cut.engine->load(only_checkpoint(folder));
          EXPECT_TRUE(torch::equal(torch::randn({40}), streams[static_cast<size_t>(mesh.rank())]))
              << "rank " << mesh.rank() << ", " << mesh.group("tp").size() << " along tp";
        },
        options);
}

TEST(EngineAxesSaving, AnotherNumberOfRanksKeepsItsRandomStreams) {
  const TemporaryDirectory folder;
  save_streams(folder);
  for (const RankOptions& options : {axes(1, 1), axes(1, 2), axes(2, 1), axes(4, 2)})
    run_ranks(
        options.mesh.axes[0].size * options.mesh.axes[1].size,
        [&](const Mesh& mesh) {
          torch::manual_seed(900 + mesh.rank());
          const torch::Tensor expected = torch::randn({40});
          CutEngine cut(mesh, 1);
          torch::manual_seed(900 + mesh.rank());
          cut.engine->load(only_checkpoint(folder));
          EXPECT_TRUE(torch::equal(torch::randn({40}), expected)) << "rank " << mesh.rank();
        },
        options);
}

/// Saves without the frozen parameters, in the middle of training.
void save_trained(const TemporaryDirectory& folder, const RankOptions& options) {
  run_ranks(
      4,
      [&](const Mesh& mesh) {
        CutEngine cut(mesh, 3, [](CutNet&) {});
        const zero::Group dp = mesh.group("dp"), tp = mesh.group("tp");
        const int64_t rows = 4 / dp.size();
        const torch::Tensor x = CutNetImpl::batch(0).narrow(0, rows * dp.rank(), rows);
        cut.engine->backward(cut.engine->forward([&] {
          return cut.net->loss(x, [&](const at::Tensor& tensor) {
            tp.all_reduce(tensor, zero::Group::Reduce::Sum, "activations").wait();
          });
        }));
        cut.engine->step();
        cut.engine->save(folder.path(), "{}", 0, "the seed");
      },
      options);
}

/// What load() says on ranks whose net has been changed; it is alike on all of them, or empty on all.
std::string refusal(const TemporaryDirectory& folder, const RankOptions& options,
                    const std::function<void(CutNet&)>& change) {
  const auto results = collect_ranks(
      options.mesh.axes[0].size * options.mesh.axes[1].size,
      [&](const Mesh& mesh) { CutEngine(mesh, 1, change).engine->load(only_checkpoint(folder)); }, options);
  std::string text = results[0].error;
  for (const RankResult& result : results) EXPECT_EQ(result.error, text);
  return text;
}

TEST(EngineAxesSaving, FrozenSlicesThatAreLeftOutAreKnownAgain) {
  const auto as_it_was = [](CutNet&) {};
  for (const RankOptions& saved : {axes(2, 2), axes(4, 1)}) {
    const TemporaryDirectory folder;
    save_trained(folder, saved);
    const zero::CheckpointReader reader(only_checkpoint(folder));
    for (const std::string name : {"model/weight", "model/bias"})
      EXPECT_FALSE(reader.tensors().contains(name));
    for (const std::string name : {"model/gain", "model/last.weight"})
      EXPECT_TRUE(reader.tensors().contains(name)) << name;
    for (const RankOptions& options : {axes(1, 1), axes(1, 2), axes(2, 2), axes(1, 4), axes(4, 1)})
      EXPECT_EQ(refusal(folder, options, as_it_was), "");
  }
}

TEST(EngineAxesSaving, OtherFrozenSlicesAreRefused) {
  const TemporaryDirectory folder;
  save_trained(folder, axes(2, 2));
  const auto expect_named = [&](const RankOptions& options, const std::string& name,
                                const std::function<void(CutNet&)>& change) {
    const std::string text = refusal(folder, options, change);
    EXPECT_NE(text.find("the frozen parameter " + name + " is not the one"), std::string::npos) << text;
    EXPECT_NE(text.find("begin with the seed"), std::string::npos) << text;
  };
  for (const RankOptions& options : {axes(1, 1), axes(1, 2), axes(2, 2), axes(1, 4)}) {
    // One element of one rank's slice: of the last column.
    expect_named(options, "weight", [](CutNet& net) {
      if (net->from + net->count == CutNetImpl::kIn) net->weight[2][net->count - 1] += 1;
    });
    expect_named(options, "bias", [](CutNet& net) { net->bias[3] += 1; });
    // The same values in other places, also of other ranks.
    expect_named(options, "weight", [](CutNet& net) {
      const at::Tensor turned = CutNetImpl::whole({CutNetImpl::kOut, CutNetImpl::kIn}, 1).roll(4, 1);
      net->weight.copy_(turned.narrow(1, net->from, net->count));
    });
  }
}

}  // namespace

// Recomputation under the engine: checkpoints are the same bytes with it and without, at every stage.
#include <ATen/ops/dropout.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/script.h>
#include <torch/utils.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "support/disk_directory.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "zero/activation_store.h"
#include "zero/engine.h"
#include "zero/lazy.h"
#include "zero/linear_cross_entropy.h"
#include "zero/recompute.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
namespace fs = std::filesystem;
namespace F = torch::nn::functional;

constexpr int64_t kWidth = 10, kVocabulary = 29, kRank = 2;

/// Blocks with an adapter and dropout, a matrix that all of them share, and a head that is the embedding.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(Block(kWidth));
      down.push_back(register_parameter("down" + std::to_string(i), torch::randn({kRank, kWidth}) * 0.1));
      up.push_back(register_parameter("up" + std::to_string(i), torch::randn({kWidth, kRank}) * 0.1));
    }
  }

  Tensor block(int i, const Tensor& x) {
    const Tensor y = layers[i]->as<BlockImpl>()->forward(x) + F::linear(F::linear(x, down[i]), up[i]);
    return torch::dropout(F::linear(y, shared), 0.2, is_training());
  }

  Tensor blocks(Tensor x, bool recomputes) {
    for (int i = 0; i < 3; ++i) {
      const auto run = [this, i](const Tensor& in) { return block(i, in); };
      x = recomputes ? zero::recompute(run, x, {.name = "block " + std::to_string(i)}) : run(x);
    }
    return x;
  }

  /// All blocks once more inside a part: of three inputs one needs no gradient and one is undefined, and of
  /// two outputs each is used.
  Tensor nested_blocks(const Tensor& x, bool recomputes) {
    using Tensors = std::vector<Tensor>;
    const auto run = [this, recomputes](const Tensors& in) -> Tensors {
      EXPECT_FALSE(in[1].requires_grad());
      EXPECT_FALSE(in[2].defined());
      const Tensor y = blocks(in[0], recomputes);
      return {(y * in[1]).tanh(), torch::dropout(y, 0.3, is_training()).exp()};
    };
    const Tensors inputs{x, torch::linspace(0.5, 1.5, kWidth, x.options().requires_grad(false)), Tensor()};
    const Tensors outputs = recomputes ? zero::recompute(run, inputs, {.name = "all blocks"}) : run(inputs);
    return outputs[0] + 0.1 * outputs[1];
  }

  Tensor loss(const Batch& batch, bool recomputes) {
    Tensor x = embedding(batch.tokens);
    x = nests ? nested_blocks(x, recomputes) : blocks(x, recomputes);
    const Tensor logits = F::linear(x, embedding->weight);
    return F::cross_entropy(logits.flatten(0, -2).to(torch::kFloat), batch.targets.flatten());
  }

  torch::nn::Embedding embedding{register_module("embedding", torch::nn::Embedding(kVocabulary, kWidth))};
  torch::nn::ModuleList layers{register_module("layers", torch::nn::ModuleList())};
  std::vector<Tensor> down, up;
  bool nests = false;
  Tensor shared = register_parameter("shared", torch::eye(kWidth) + torch::randn({kWidth, kWidth}) * 0.1);
};
TORCH_MODULE(Net);

enum class Trains { Everything, AllButTheEmbedding, Adapters };

struct Case {
  zero::EngineOptions options;
  Trains trains = Trains::Everything;
  bool nests = false;
};

void freeze(NetImpl& net, Trains trains) {
  for (auto& item : net.named_parameters()) {
    const bool is_adapter = item.key().starts_with("up") || item.key().starts_with("down");
    if (trains == Trains::Adapters) item.value().set_requires_grad(is_adapter);
    if (trains == Trains::AllButTheEmbedding && item.key() == "embedding.weight")
      item.value().set_requires_grad(false);
  }
}

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// A checkpoint's files by name, without the number that every save draws and the index's sum over it.
std::map<std::string, std::string> files_of(const fs::path& checkpoint) {
  constexpr std::string_view kBeforeId = "\"save_id\": \"", kBeforeSum = "\"checksum\": \"";
  constexpr size_t kDigits = 16;
  const std::string index = text_of(checkpoint / "index.json");
  const std::string id = index.substr(index.find(kBeforeId) + kBeforeId.size(), kDigits);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), id.npos) << id;
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    std::string& text = files[entry.path().filename().string()] = text_of(entry.path());
    for (size_t at = text.find(id); at != text.npos; at = text.find(id, at)) text.erase(at, kDigits);
  }
  std::string& shorter = files["index.json"];
  shorter.erase(shorter.rfind(kBeforeSum) + kBeforeSum.size(), kDigits);
  return files;
}

struct Outcome {
  std::vector<double> losses;
  fs::path checkpoint;
  zero::EngineStats stats;
};

Outcome train(const zero::Mesh& mesh, const Case& of, bool recomputes, const fs::path& directory,
              const zero::ActivationStore* store = nullptr) {
  torch::manual_seed(7);
  Net net = zero::lazily([] { return Net(); });
  net->nests = of.nests;
  freeze(*net, of.trains);
  zero::Engine engine(*net, zero::AdamW{.lr = 1e-2}, of.options, mesh);
  torch::manual_seed(100 + mesh.rank());
  Outcome outcome;
  for (int micro = 0; micro < 3 * of.options.accumulation_steps; ++micro) {
    const Batch batch = batch_of(micro, 2 * mesh.size()).rows(2 * mesh.rank(), 2);
    const Tensor loss = engine.forward([&] {
      std::optional<zero::ActivationStore::Scope> scope;
      if (store != nullptr) scope.emplace(*store);
      return net->loss(batch, recomputes);
    });
    outcome.losses.push_back(loss.item<double>());
    engine.backward(loss);
    engine.step();
  }
  net->eval();
  const torch::NoGradGuard no_grad;
  const Tensor evaluated = engine.forward([&] { return net->loss(batch_of(50, 2), recomputes); });
  outcome.losses.push_back(evaluated.item<double>());
  outcome.checkpoint = engine.save(directory);
  outcome.stats = engine.stats();
  return outcome;
}

/// Trains with and without, in directories below `root`; losses and files are the same. With a store what is
/// kept is there.
void expect_same(const zero::Mesh& mesh, const Case& of, const fs::path& root, const std::string& what,
                 const zero::ActivationStore* store = nullptr, bool recomputes = true) {
  const Outcome with = train(mesh, of, recomputes, root / what / "with", store),
                plain = train(mesh, of, false, root / what / "plain");
  EXPECT_EQ(with.losses, plain.losses) << what;
  mesh.world().barrier("saved");
  if (mesh.rank() == 0) {
    const auto a = files_of(with.checkpoint), b = files_of(plain.checkpoint);
    EXPECT_GT(a.size(), 1) << what;
    EXPECT_EQ(a.size(), b.size()) << what;
    for (const auto& [name, bytes] : a)
      EXPECT_TRUE(b.contains(name) && b.at(name) == bytes) << what << ": " << name;
  }
  // Nothing is reduced twice, and what is computed again is fetched as the schedule says.
  EXPECT_EQ(with.stats.reduce_scatter_elements, plain.stats.reduce_scatter_elements) << what;
  EXPECT_EQ(with.stats.recorded_schedules, plain.stats.recorded_schedules) << what;
}

class EngineRecompute : public ::testing::TestWithParam<int> {};

TEST_P(EngineRecompute, CheckpointsAreTheSameBytes) {
  const TemporaryDirectory root;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (int stage = 0; stage <= 3; ++stage)
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        Case of{.options = {.stage = stage, .dtype = dtype}};
        of.options.group_numel = 200;
        of.options.reduce_bucket_numel = 500;
        of.options.share_parameters = false;
        const std::string what = "stage " + std::to_string(stage) + " " + c10::toString(dtype);
        expect_same(mesh, of, root.path(), what);
        of.options.accumulation_steps = 2;
        of.options.budget_bytes = 0;
        expect_same(mesh, of, root.path(), what + ", accumulation, nothing kept resident");
      }
  });
}

TEST_P(EngineRecompute, WithFrozenParametersAndAdapters) {
  const TemporaryDirectory root;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const int stage : {0, 1, 2, 3})
      for (const Trains trains : {Trains::AllButTheEmbedding, Trains::Adapters}) {
        Case of{.options = {.stage = stage}, .trains = trains};
        of.options.share_parameters = false;
        const char* trained = trains == Trains::Adapters ? ", adapters" : ", all but the embedding";
        expect_same(mesh, of, root.path(), "stage " + std::to_string(stage) + trained);
      }
  });
}

TEST_P(EngineRecompute, NestedWithSeveralInputsAndOutputs) {
  const TemporaryDirectory root;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (int stage = 0; stage <= 3; ++stage)
      for (const Trains trains : {Trains::Everything, Trains::AllButTheEmbedding, Trains::Adapters}) {
        Case of{.options = {.stage = stage}, .trains = trains, .nests = true};
        of.options.share_parameters = false;
        expect_same(
            mesh, of, root.path(),
            "nested, stage " + std::to_string(stage) + ", " + std::to_string(static_cast<int>(trains)));
      }
  });
}

TEST_P(EngineRecompute, ActivationsOnDiskLeaveTheSameBytes) {
  const TemporaryDirectory root;
  const DiskDirectory disk;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    const zero::ActivationStore store({.tier = zero::Tier::Disk,
                                       .path = disk.path().string(),
                                       .buffer_bytes = 8192,
                                       .least_bytes = 1,
                                       .block_bytes = 4096});
    for (const int stage : {0, 1, 2, 3})
      for (const bool recomputes : {false, true})
        expect_same(mesh, {.options = {.stage = stage, .accumulation_steps = 2}}, root.path(),
                    "stage" + std::to_string(stage) + (recomputes ? "again" : ""), &store, recomputes);
    for (const Trains trains : {Trains::AllButTheEmbedding, Trains::Adapters})
      expect_same(mesh, {.options = {.stage = 3, .budget_bytes = 0}, .trains = trains}, root.path(),
                  "trains" + std::to_string(static_cast<int>(trains)), &store, false);
    EXPECT_GT(store.stats().read_bytes, 0);
    EXPECT_EQ(store.stats().stored_bytes, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineRecompute, ::testing::Values(1, 2, 3));

TEST(EngineRecomputeHybrid, CheckpointsAreTheSameBytes) {
  const TemporaryDirectory root;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    Case of{.options = {.stage = 3}};
    of.options.shard_group_ranks = 1;
    expect_same(mesh, of, root.path(), "hybrid");
  });
}

// The head is the embedding, of which each rank holds a part.
TEST(EngineLinearCrossEntropy, TrainsAsLinearAndCrossEntropyDo) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    const auto run = [&](int stage, bool fused) {
      torch::manual_seed(3);
      SmallNet net;
      zero::Engine engine(*net, zero::SGD{.lr = 0.5}, {.stage = stage, .share_parameters = false}, mesh);
      const auto loss_of = [&](const Batch& batch) {
        if (!fused) return net->loss(batch.tokens, batch.targets);
        Tensor x = net->embedding(batch.tokens);
        for (const auto& layer : *net->layers) x = layer->as<BlockImpl>()->forward(x);
        return zero::linear_cross_entropy(net->norm(x), net->embedding->weight, batch.targets,
                                          {.rows_at_a_time = 5});
      };
      for (int step = 0; step < 3; ++step) {
        const Batch batch = batch_of(step, 4).rows(2 * mesh.rank(), 2);
        engine.backward(engine.forward([&] { return loss_of(batch); }));
        engine.step();
      }
      std::vector<Tensor> values;
      for (const std::string& name : engine.parameter_names()) values.push_back(engine.full_parameter(name));
      return values;
    };
    for (const int stage : {0, 3}) {
      const auto fused = run(stage, true), plain = run(stage, false);
      for (size_t i = 0; i < plain.size(); ++i)
        EXPECT_TRUE(torch::allclose(fused[i], plain[i], 1e-5, 1e-6)) << stage << ", parameter " << i;
    }
  });
}

TEST(EngineRecomputeScript, TorchScriptIsRunAsInTheForward) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    const auto run = [&](bool recomputes) {
      torch::manual_seed(3);
      torch::jit::Module module("net");
      module.register_parameter("weight", torch::randn({6, 6}).requires_grad_(), false);
      module.define("def forward(self, x):\n  return torch.tanh(torch.mm(x, self.weight)).exp() * x\n");
      zero::Engine engine(module, zero::Adam{.lr = 1e-2}, {.stage = 3, .share_parameters = false}, mesh);
      for (int step = 0; step < 3; ++step) {
        const Tensor x = torch::ones({4, 6}) * (0.1 * (mesh.rank() + 1));
        const auto block = [&](const Tensor& in) { return module.forward({in}).toTensor(); };
        const Tensor loss = engine.forward([&] {
          return (recomputes ? zero::recompute(block, zero::recompute(block, x)) : block(block(x))).sum();
        });
        engine.backward(loss);
        engine.step();
      }
      return engine.full_parameter("weight");
    };
    EXPECT_TRUE(torch::equal(run(true), run(false)));
  });
}

}  // namespace

#pragma once
// A small model that trains on this rank's virtual device, with states here and there.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "support/checkpoint_files.h"
#include "support/small_net.h"
#include "support/virtual_ranks.h"
#include "zero/engine.h"

namespace zero::virtual_device::testing {

using namespace zero::testing;
namespace fs = std::filesystem;
using torch::Tensor;

constexpr int64_t kVocabulary = 101, kWidth = 48;
constexpr int64_t kPiece = 1024;  // a shard has more pieces than there are buffers
constexpr int kSamples = 12;

inline EngineOptions offloaded(EngineOptions options, Tier tier, const fs::path& path) {
  options.tiers.master = options.tiers.optimizer = tier;
  options.offload.path = path;
  options.offload.buffer_count = 3;
  options.offload.piece_numel = kPiece;
  options.offload.block_bytes = 4096;
  return options;
}

/// A model in an engine on this rank's device, and its steps.
struct Trained {
  /// `freezes`: the first block.
  Trained(const Mesh& job, const OptimizerSpec& optimizer, EngineOptions options, bool freezes = false)
      : mesh((own_devices(), job)),
        model(made(freezes)),
        engine(*model, optimizer, without_cpu_operators(std::move(options)), job) {}
  static SmallNet made(bool freezes) {
    torch::manual_seed(1);
    SmallNet net(kVocabulary, kWidth, 2);
    if (freezes)
      for (auto& parameter : net->layers[0]->parameters()) parameter.set_requires_grad(false);
    return net;
  }
  static EngineOptions without_cpu_operators(EngineOptions options) {
    options.cpu_operators = false;
    return options;
  }
  void steps(int begin, int end) {
    const int each = kSamples / mesh.size();
    for (int step = begin; step < end; ++step)
      for (int i = 0; i < engine.plan().accumulation_steps; ++i) {
        const Batch batch = batch_of(step * 10 + i, kSamples, kVocabulary).rows(mesh.rank() * each, each);
        const Tensor tokens = batch.tokens.to(mesh.device()), targets = batch.targets.to(mesh.device());
        engine.backward(engine.forward([&] { return model->loss(tokens, targets); }));
        if (i + 1 == engine.plan().accumulation_steps) engine.step();
      }
  }
  Mesh mesh;
  SmallNet model;
  Engine engine;
};

/// On rank 0: two checkpoints have the same tensors to the byte.
inline void expect_same(const Mesh& mesh, const fs::path& a, const fs::path& b, const std::string& what) {
  if (mesh.rank() == 0) {
    EXPECT_TRUE(same(read_all(a), read_all(b))) << what;
  }
  mesh.world().barrier("compared");
}

}  // namespace zero::virtual_device::testing

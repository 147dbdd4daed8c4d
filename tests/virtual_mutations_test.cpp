// Every wait of the engine is needed, and the checks of virtual devices know it: each left out is a fault.
#include "support/virtual_mutations.h"

#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <set>

#include "support/small_net.h"
#include "zero/engine.h"

namespace zero::virtual_device::testing {
namespace {

using namespace zero::testing;
using torch::Tensor;

/// Two groups of two ranks that share their shards: units are gathered, evicted and gathered again, gradients
/// pass through buckets and over replicas, the optimizer sums over ranks, an evaluation runs within a pass,
/// and parameters are changed, read and saved.
void train_in_all_ways(const Mesh& mesh, const std::filesystem::path& directory) {
  own_devices();
  torch::manual_seed(7);
  SmallNet model;
  EngineOptions options{.stage = 3, .dtype = Dtype::bf16, .accumulation_steps = 2, .gradient_clipping = 0.5};
  options.shard_group_ranks = mesh.size() / 2;
  options.budget_bytes = 1500;  // two of the blocks
  options.prefetch_bytes = 800;
  options.reduce_bucket_numel = 256;
  options.cpu_operators = false;
  Engine engine(*model, LAMB{}, options, mesh);
  const Batch batch = batch_of(mesh.rank(), 2);
  const Tensor tokens = batch.tokens.to(mesh.device()), targets = batch.targets.to(mesh.device());
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < options.accumulation_steps; ++i) {
      const Tensor loss = engine.forward([&] { return model->loss(tokens, targets); });
      {
        const torch::NoGradGuard no_grad;
        engine.forward([&] { return model->loss(tokens, targets); });
      }
      engine.backward(loss);
    }
    engine.step();
  }
  {
    GatherScope scope(engine, Access::Modify);
    if (mesh.rank() == 0) {
      const torch::NoGradGuard no_grad;
      model->norm->bias.add_(1);
      model->norm->weight.set_data(torch::ones_like(model->norm->weight));
    }
    scope.broadcast(0);
  }
  engine.full_parameter("embedding.weight");
  engine.begin_save(directory);
  while (!engine.finish_save(/*wait=*/false)) continue;
}

const std::set<std::string> kPlaces{"bucket",
                                    "bytes of all ranks",
                                    "copy to the host",
                                    "end of a save",
                                    "full parameter",
                                    "gather",
                                    "gradient norm",
                                    "initial values",
                                    "order of gradients",
                                    "replaced parameters",
                                    "replicas' parts",
                                    "replicas' sum",
                                    "sizes of all ranks' texts",
                                    "start of a collective",
                                    "sums of parameters",
                                    "values of a gather scope",
                                    "values of replaced parameters"};

TEST(VirtualMutations, EachWaitThatIsLeftOutIsAFault) {
  const Found whole = run_without({}, 4, train_in_all_ways);
  EXPECT_EQ(whole.faults, std::set<std::string>{});
  EXPECT_EQ(whole.places, kPlaces);
  // Whether the host comes too early depends on what else has made it wait meanwhile.
  expect_all_missed(whole.places, {"copy to the host"}, 4, train_in_all_ways);
}

}  // namespace
}  // namespace zero::virtual_device::testing

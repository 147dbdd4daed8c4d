// Shards are borrowed while they are gathered, and free again when they are written.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <vector>

#include "support/ranks.h"
#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

struct BorrowedCase {
  int stage;
  std::optional<zero::DtypeOption> dtype;
};

// Two steps, then one more; in between, if so, passes that use the embedding alone, while the blocks behind
// it are fetched ahead for nobody.
std::vector<Tensor> trained(const zero::Mesh& mesh, const std::filesystem::path& folder,
                            const BorrowedCase& of, bool fetches_in_vain) {
  torch::manual_seed(3);
  SmallNet model;
  zero::EngineOptions options{.stage = of.stage, .dtype = of.dtype};
  options.share_parameters = false;
  zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, options, mesh);
  const auto step = [&](int64_t number) {
    const Batch batch = batch_of(number, 4).rows(2 * mesh.rank(), 2);
    engine.backward(engine.forward([&] { return model->loss(batch.tokens, batch.targets); }));
    engine.step();
  };
  const auto embed = [&] {
    const Tensor tokens = batch_of(9, 2).tokens;
    return engine.forward([&] { return model->embedding(tokens).to(torch::kFloat).square().mean(); });
  };
  step(0);
  step(1);
  const auto saved = engine.save(folder);
  if (fetches_in_vain) {
    const int64_t before = engine.stats().all_gathers;
    embed();
    EXPECT_GT(engine.stats().all_gathers, before + 1) << "nothing was fetched ahead";
    engine.abandon_pass();
    engine.load(saved);
    engine.backward(embed());
    engine.step();
    engine.load(saved);
  }
  step(2);
  std::vector<Tensor> values;
  for (const std::string& name : engine.parameter_names()) values.push_back(engine.full_parameter(name));
  return values;
}

TEST(BorrowedShards, AreFreeWhenStepsAndLoadsWriteThem) {
  const TemporaryDirectory plain, in_vain;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    for (const BorrowedCase& of :
         {BorrowedCase{1, {}}, BorrowedCase{3, {}}, BorrowedCase{3, zero::Dtype::bf16}}) {
      const std::string name = std::to_string(of.stage) + (of.dtype ? " bf16" : "");
      const auto expected = trained(mesh, plain.path() / name, of, false);
      const auto found = trained(mesh, in_vain.path() / name, of, true);
      ASSERT_EQ(expected.size(), found.size());
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(torch::equal(expected[i], found[i])) << "stage " << name << ", " << i;
    }
  });
}

}  // namespace

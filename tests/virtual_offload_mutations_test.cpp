// Every wait between a device and states on the host or a disk is needed, and each left out is a fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "support/disk_directory.h"
#include "support/virtual_mutations.h"
#include "support/virtual_training.h"

namespace zero::virtual_device::testing {
namespace {

EngineOptions everything_in(Tier tier, const fs::path& path) {
  EngineOptions options{.stage = 3, .dtype = Dtype::bf16, .accumulation_steps = 2};
  options.budget_bytes = 0;
  options.tiers = {.parameter = tier, .gradient = tier, .master = tier, .optimizer = tier};
  options.offload.path = path;
  options.offload.buffer_count = 2;
  options.offload.piece_numel = 2048;
  options.offload.block_bytes = 4096;
  return options;
}

/// New values are written into a shard that was on its way to the device for a forward that ended without it.
void write_what_was_fetched_in_vain(const Mesh& mesh, const fs::path& path) {
  EngineOptions options = everything_in(Tier::Host, path);
  options.shard_group_ranks = 1;
  options.budget_bytes = -1;
  Trained trained(mesh, AdamW{}, options);
  const Batch batch = batch_of(7, kSamples, kVocabulary);
  const Tensor tokens = batch.tokens.to(mesh.device()), targets = batch.targets.to(mesh.device());
  const torch::NoGradGuard no_grad;
  for (const auto& item : trained.model->named_parameters()) {
    const Tensor values = torch::zeros(item.value().sizes());
    trained.engine.forward([&] { return trained.model->loss(tokens, targets); });  // the order is known then
    trained.engine.set_full_parameter(item.key(), values);                         // nothing is resident
    trained.engine.forward([&] { return trained.model->embedding(tokens); });
    trained.engine.set_full_parameter(item.key(), values);
  }
}

/// Ranks alone own their slabs, and ranks that share them gather; states on the host and on a disk, all of
/// them and those of the optimizer only.
void train_with_everything_away(const Mesh& mesh, const fs::path& /*directory*/) {
  const DiskDirectory disk;
  for (const int shard_group_ranks : {1, 2})
    for (const Tier tier : {Tier::Host, Tier::Disk}) {
      EngineOptions options = everything_in(tier, disk.path());
      options.shard_group_ranks = shard_group_ranks;
      Trained trained(mesh, AdamW{}, options);
      trained.steps(0, 3);
    }
  EngineOptions states_alone = everything_in(Tier::Host, disk.path());
  write_what_was_fetched_in_vain(mesh, disk.path());
  states_alone.tiers.parameter = states_alone.tiers.gradient = Tier::Device;
  Trained trained(mesh, AdamW{}, states_alone);
  trained.steps(0, 3);
}

const std::set<std::string> kPlacesOfOffload{
    "gradient from the device", "gradient to the device", "gradient's memory",
    "memory of a slab",         "memory of pieces",       "piece from the device",
    "pieces to the device",     "shard on its way",       "shard on the device"};

TEST(VirtualOffloadMutations, EachWaitThatIsLeftOutIsAFault) {
  const Found whole = run_without({}, 2, train_with_everything_away);
  EXPECT_EQ(whole.faults, std::set<std::string>{});
  EXPECT_TRUE(std::includes(whole.places.begin(), whole.places.end(), kPlacesOfOffload.begin(),
                            kPlacesOfOffload.end()));
  for (const std::string& place : kPlacesOfOffload) EXPECT_TRUE(whole.places.contains(place)) << place;
  expect_all_missed(kPlacesOfOffload, {}, 2, train_with_everything_away);
}

}  // namespace
}  // namespace zero::virtual_device::testing

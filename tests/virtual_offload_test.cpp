// States of a device on the host and on disk: the same bits as in the device's memory, at every stage and
// number of ranks, in the order that the device's streams need, and in the memory that the plan counts.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "support/disk_directory.h"
#include "support/virtual_training.h"
#include "zero/engine.h"

namespace zero::virtual_device::testing {
namespace {

using namespace zero::testing;
namespace fs = std::filesystem;
using torch::Tensor;

class VirtualOffload : public ::testing::TestWithParam<std::tuple<int, Tier>> {};

TEST_P(VirtualOffload, ChangesNoBit) {
  const DiskDirectory folder;
  const auto [ranks, tier] = GetParam();
  run_ranks(
      ranks,
      [&, tier = tier](const Mesh& mesh) {
        for (int stage = 0; stage <= 3; ++stage)
          for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
            const std::string what = "stage " + std::to_string(stage) + ", " + std::string(to_string(dtype));
            const fs::path place = folder.path() / what;
            EngineOptions options{.stage = stage, .dtype = dtype, .gradient_clipping = 0.5};
            options.group_numel = 200;
            const EngineOptions other = offloaded(options, tier, folder.path());
            Trained memory(mesh, AdamW{.lr = 1e-2}, options);
            Trained offload(mesh, AdamW{.lr = 1e-2}, other);
            memory.steps(0, 3);
            offload.steps(0, 3);
            const fs::path one = memory.engine.save(place / "memory"),
                           two = offload.engine.save(place / "offload");
            expect_same(mesh, one, two, what);

            // Either goes on from what the other has saved.
            Trained resumed(mesh, AdamW{.lr = 1e-2}, other);
            resumed.engine.load(one);
            resumed.steps(3, 4);
            memory.engine.load(two);
            memory.steps(3, 4);
            const fs::path after = memory.engine.save(place / "memory");
            expect_same(mesh, after, resumed.engine.save(place / "resumed"), what + ", resumed");
            expect_no_faults();
          }
      },
      on_virtual_devices());
}

INSTANTIATE_TEST_SUITE_P(RanksAndTiers, VirtualOffload,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(Tier::Host, Tier::Disk)));

struct Way {
  std::string name;
  OptimizerSpec rule = AdamW{.lr = 1e-2};
  EngineOptions options = {.stage = 3, .dtype = Dtype::bf16};
  std::function<void(OffloadOptions&)> set = [](OffloadOptions&) {};
  Tier gradient = Tier::Device;
};

std::vector<Way> ways() {
  EngineOptions whole_masters{.stage = 2, .dtype = Dtype::bf16};
  whole_masters.split_master = false;
  EngineOptions accumulated{.stage = 1, .dtype = Dtype::bf16, .accumulation_steps = 2};
  EngineOptions f32{.stage = 3, .accumulation_steps = 2};
  EngineOptions hybrid{.stage = 3, .dtype = Dtype::bf16, .accumulation_steps = 2};
  hybrid.shard_group_ranks = 1;
  EngineOptions small_buckets{.stage = 3};
  small_buckets.reduce_bucket_numel = 3000;
  EngineOptions no_overlap = small_buckets;
  no_overlap.overlap = false;
  const EngineOptions bf16{.stage = 3, .dtype = Dtype::bf16}, clipped{.stage = 2, .gradient_clipping = 0.5};
  const AdamW adam{.lr = 1e-2};
  const LAMB lamb{.lr = 1e-2};
  const auto as_it_is = [](OffloadOptions&) {};
  const auto in_part = [](OffloadOptions& o) { o.ratio = 0.4; };
  const auto pageable = [](OffloadOptions& o) { o.pin_memory = false; };
  return {{"gradients", adam, bf16, as_it_is, Tier::Host},
          {"gradients in part", adam, clipped, in_part, Tier::Host},
          {"gradients of LAMB", lamb, clipped, in_part, Tier::Host},
          {"gradients, accumulated", adam, accumulated, as_it_is, Tier::Host},
          {"gradients, accumulated sums", adam, f32, as_it_is, Tier::Host},
          {"gradients, replicas", adam, hybrid, as_it_is, Tier::Host},
          {"gradients, small buckets", adam, small_buckets, as_it_is, Tier::Host},
          {"gradients, no overlap", adam, no_overlap, as_it_is, Tier::Host},
          {"gradients, pageable", adam, f32, pageable, Tier::Host},
          {"LAMB", lamb, bf16},
          {"LAMB in part", lamb, bf16, in_part},
          {"SGD", SGD{.lr = 1e-2, .momentum = 0.9}, bf16},
          {"in part", adam, clipped, in_part},
          {"pageable", adam, f32, pageable},
          {"two buffers", adam, f32, [](OffloadOptions& o) { o.buffer_count = 2; }},
          {"whole masters", adam, whole_masters},
          {"accumulated", adam, accumulated}};
}

TEST(VirtualOffloadedStep, GivesTheSameBitsInEveryWay) {
  const TemporaryDirectory folder;
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        for (const Way& way : ways()) {
          Trained memory(mesh, way.rule, way.options);
          EngineOptions other = offloaded(way.options, Tier::Host, {});
          way.set(other.offload);
          other.tiers.gradient = way.gradient;
          Trained host(mesh, way.rule, other);
          memory.steps(0, 3);
          host.steps(0, 3);
          expect_same(mesh, memory.engine.save(folder.path() / (way.name + ", memory")),
                      host.engine.save(folder.path() / way.name), way.name);
          expect_no_faults();
        }
      },
      on_virtual_devices());
}

}  // namespace
}  // namespace zero::virtual_device::testing

// Moments in 8 bits of ranks on devices: the device's operators, and the CPU beside it, give the same bits.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/disk_directory.h"
#include "support/virtual_training.h"

namespace zero::virtual_device::testing {
namespace {

OptimizerSpec in_8_bits() {
  AdamW rule{.lr = 1e-2};
  rule.states_8bit = true;
  return rule;
}

/// fp16: begins with a scale that overflows, so that steps are skipped.
std::vector<EngineOptions> eight_bit_options() {
  EngineOptions f16{.stage = 3, .dtype = Dtype::f16};
  f16.loss_scaling.emplace();
  EngineOptions bf16{.stage = 1, .dtype = Dtype::bf16, .accumulation_steps = 2, .gradient_clipping = 0.5};
  return {{.stage = 3}, bf16, f16};
}

TEST(VirtualEightBit, EveryPlaceGivesTheSameBits) {
  const DiskDirectory folder;
  for (const int ranks : {1, 2})
    run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          for (const EngineOptions& options : eight_bit_options()) {
            const std::string what = std::to_string(ranks) + " ranks, " +
                                     std::string(options.dtype ? to_string(*options.dtype) : "fp32");
            Trained memory(mesh, in_8_bits(), options);
            memory.steps(0, 4);
            const fs::path saved = memory.engine.save(folder.path() / (what + ", memory"));
            int64_t trained_numel = 0;
            for (const UnitLayout& unit : memory.engine.plan().units) trained_numel += unit.shard_numel;
            EXPECT_LT(memory.engine.plan().rank.optimizer_bytes, 3 * trained_numel) << "they are in 8 bits";
            for (const Tier tier : {Tier::Host, Tier::Disk}) {
              Trained other(mesh, in_8_bits(), offloaded(options, tier, folder.path()));
              other.steps(0, 4);
              const fs::path there = other.engine.save(folder.path() / (what + std::string(to_string(tier))));
              expect_same(mesh, saved, there, what + ", " + std::string(to_string(tier)));
              other.engine.load(saved);
              other.steps(4, 5);
              expect_no_faults();
            }
          }
        },
        on_virtual_devices());
}

}  // namespace
}  // namespace zero::virtual_device::testing

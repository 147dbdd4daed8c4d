// A placement beside a device that meets larger activations than it was chosen for: states move to the host
// or a disk between steps, the bits stay, and the device's memory keeps to the budget from then on.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/virtual_training.h"
#include "zero/adaptive_placement.h"

namespace zero::virtual_device::testing {
namespace {

using namespace zero::testing;

constexpr int kAdaptSteps = 7, kGrowsAt = 3;
constexpr int64_t kShortSamples = 6, kLongSamples = 96;  // of a rank

int64_t take_device_peak() {
  own_devices().synchronize();
  const int64_t peak = own_devices().report().peak_bytes;
  own_devices().reset_peaks();
  return peak;
}

struct DeviceCourse {
  std::vector<int64_t> peaks;  // of each step, on the rank that took the most
  std::vector<std::string> notes;
  int64_t moves = 0, moved_bytes = 0;
  std::map<Tier, int64_t> bytes_in;  // of states, in the end
  fs::path saved;
};

DeviceCourse adapt(const Mesh& mesh, const EngineOptions& options, const std::optional<TierRequest>& request,
                   const fs::path& directory) {
  Trained trained(mesh, AdamW{.lr = 1e-2}, options);
  std::optional<AdaptivePlacement> placement;
  int64_t peak = 0;
  if (request)
    placement.emplace(trained.engine, Trained::without_cpu_operators(options), *request, directory / "moved",
                      [&] { return peak; });
  DeviceCourse course;
  for (int step = 0; step < kAdaptSteps; ++step) {
    const int64_t each = step >= kGrowsAt ? kLongSamples : kShortSamples;
    take_device_peak();
    {
      const Batch batch = batch_of(step, each * mesh.size(), kVocabulary).rows(mesh.rank() * each, each);
      const Tensor tokens = batch.tokens.to(mesh.device()), targets = batch.targets.to(mesh.device());
      trained.engine.backward(trained.engine.forward([&] { return trained.model->loss(tokens, targets); }));
    }
    trained.engine.step();
    peak = take_device_peak();
    const Tensor most = torch::full({1}, static_cast<double>(peak), at::kDouble).to(mesh.device());
    mesh.world().all_reduce(most, Group::Reduce::Max, "peak").wait();
    course.peaks.push_back(static_cast<int64_t>(most.item<double>()));
    course.notes.push_back(placement ? placement->after_step() : "");
  }
  EXPECT_FALSE(fs::exists(directory / "moved")) << "what states passed through is gone";
  for (const Tier tier : {Tier::Host, Tier::Disk})
    course.bytes_in[tier] = trained.engine.plan().rank.tier_bytes[static_cast<size_t>(tier)];
  if (placement) {
    course.moves = placement->moves();
    course.moved_bytes = placement->moved_bytes();
  }
  course.saved = trained.engine.save(directory / (request ? "adapted" : "plain"));
  return course;
}

class VirtualAdaptive : public ::testing::TestWithParam<std::tuple<int, Tier>> {};

TEST_P(VirtualAdaptive, StatesLeaveTheDeviceWhenActivationsGrowAndTheBitsStay) {
  const DiskDirectory folder;
  const auto [ranks, tier] = GetParam();
  run_ranks(
      ranks,
      [&, tier = tier](const Mesh& mesh) {
        for (const auto& [stage, dtype] :
             std::vector<std::pair<int, Dtype>>{{1, Dtype::f32}, {3, Dtype::bf16}}) {
          const std::string what = "stage " + std::to_string(stage);
          EngineOptions options{.stage = stage, .dtype = dtype, .gradient_clipping = 0.5};
          options.group_numel = 200;
          if (tier == Tier::Disk) options.offload.path = folder.path();
          options.offload.buffer_count = 2;
          options.offload.piece_numel = kPiece;
          options.offload.block_bytes = 4096;
          const fs::path place = folder.path() / what;
          const DeviceCourse plain = adapt(mesh, options, std::nullopt, place);
          const int64_t small = *std::max_element(plain.peaks.begin(), plain.peaks.begin() + kGrowsAt);
          const int64_t large = *std::max_element(plain.peaks.begin() + kGrowsAt, plain.peaks.end());
          ASSERT_GT(large, small + small / 10) << what;
          TierRequest request{.movable = {.master = true, .optimizer = true},
                              .memory_bytes = large - large / 64};
          if (tier == Tier::Disk) {  // more has to go than the host has room for
            request.host_bytes = 64 << 10;
            request.memory_bytes = large - 90'000;
          }
          const DeviceCourse adapted = adapt(mesh, options, request, place);
          expect_same(mesh, plain.saved, adapted.saved, what);
          EXPECT_GE(adapted.moves, 1) << what;
          EXPECT_LE(adapted.moves, 2) << what;
          EXPECT_GT(adapted.moved_bytes, 0) << what;
          EXPECT_GT(adapted.bytes_in.at(tier), 0) << what;
          for (int step = 0; step < kAdaptSteps; ++step) {
            const auto at = static_cast<size_t>(step);
            if (step < kGrowsAt || step > kGrowsAt + 1) {
              EXPECT_EQ(adapted.notes[at], "") << what << " step " << step;
            }
            if (step > kGrowsAt + 1) {
              EXPECT_LE(adapted.peaks[at], request.memory_bytes) << what << " step " << step;
            }
          }
          EXPECT_NE(adapted.notes[kGrowsAt].find("; moved "), std::string::npos) << adapted.notes[kGrowsAt];
          expect_no_faults();
        }
      },
      on_virtual_devices());
}

INSTANTIATE_TEST_SUITE_P(RanksAndTiers, VirtualAdaptive,
                         ::testing::Combine(::testing::Values(1, 2),
                                            ::testing::Values(Tier::Host, Tier::Disk)));

TEST(VirtualAdaptivePlacement, NeedsAMeasureOfTheDevice) {
  run_ranks(
      1,
      [](const Mesh& mesh) {
        Trained trained(mesh, AdamW{}, {.stage = 1});
        EXPECT_ERROR(AdaptivePlacement(trained.engine, {.stage = 1}, {.memory_bytes = 1}, "nowhere"),
                     Unsupported, "whose memory nobody measures");
      },
      on_virtual_devices());
}

}  // namespace
}  // namespace zero::virtual_device::testing

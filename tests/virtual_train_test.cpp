// `zero train`'s runs beside a device, whose placement was chosen: a step that takes more of the device moves
// states to the host, and the run is the one with everything on the device.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/small_run.h"
#include "support/virtual_ranks.h"
#include "zero/train.h"

namespace zero::virtual_device::testing {
namespace {

using zero::testing::losses_of;
using zero::testing::newest_values;
using zero::testing::run_ranks;
using zero::testing::SmallRun;

constexpr int kTrainRanks = 2;

DeviceFigures figures_of_step() {
  own_devices().synchronize();
  DeviceFigures figures;
  figures.peak_bytes = own_devices().report().peak_bytes;
  own_devices().reset_peaks();
  return figures;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct DeviceRun {
  int64_t peak_bytes = 0, last_peak_bytes = 0;  // of all steps, of the last; on the rank that took the most
  std::string said;
};

/// Trains `config` on virtual devices, with `beside_bytes` more in use from the third step on.
DeviceRun train_on_devices(const Config& config, const std::filesystem::path& lines, int64_t beside_bytes) {
  std::FILE* const progress = std::fopen(lines.c_str(), "w");
  EXPECT_NE(progress, nullptr);
  std::setvbuf(progress, nullptr, _IONBF, 0);
  const auto results = run_ranks(
      kTrainRanks,
      [&](const Mesh& mesh) {
        int64_t most = 0, last = 0;
        at::Tensor beside;
        TrainOptions options{.progress = progress};
        options.device_figures = figures_of_step;
        options.on_step = [&](const StepReport& report) {
          last = report.device->peak_bytes;
          most = std::max(most, last);
          if (report.step == 2 && beside_bytes > 0)
            beside = at::empty({beside_bytes}, at::TensorOptions(mesh.device()).dtype(at::kByte));
        };
        train(config, mesh, options);
        expect_no_faults();
        zero::testing::hand_back(std::to_string(most) + " " + std::to_string(last));
      },
      on_virtual_devices());
  std::fclose(progress);
  DeviceRun run{.said = text_of(lines)};
  for (const auto& rank : results) {
    run.peak_bytes = std::max<int64_t>(run.peak_bytes, std::stoll(rank.bytes));
    run.last_peak_bytes =
        std::max<int64_t>(run.last_peak_bytes, std::stoll(rank.bytes.substr(rank.bytes.find(' '))));
  }
  return run;
}

TEST(VirtualTrain, AChosenPlacementKeepsToTheDevicesMemory) {
  const SmallRun small;
  const auto config = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> settings{
        "model.width=96",      "model.heads=4",      "zero_optimization.stage=1",
        "cpu_operators=false", "run.eval_batches=1", "gradient_clipping=0.5"};
    settings.insert(settings.end(), more.begin(), more.end());
    return small.config(kTrainRanks, settings, name);
  };
  const DeviceRun plain = train_on_devices(config("plain", {}), small.path() / "plain.txt", 0);
  ASSERT_GT(plain.peak_bytes, 0);
  const int64_t budget = plain.peak_bytes * 5 / 4;
  const std::string memory = "offload.memory=" + std::to_string(budget);
  const DeviceRun roomy =
      train_on_devices(config("roomy", {"offload.optimizer=auto", memory}), small.path() / "roomy.txt", 0);
  EXPECT_EQ(roomy.said.find("; moved "), std::string::npos) << roomy.said;
  const DeviceRun moved = train_on_devices(config("moved", {"offload.optimizer=auto", memory}),
                                           small.path() / "moved.txt", plain.peak_bytes * 3 / 10);
  EXPECT_NE(moved.said.find("a step took "), std::string::npos) << moved.said;
  EXPECT_NE(moved.said.find("; moved "), std::string::npos) << moved.said;
  EXPECT_GT(moved.peak_bytes, budget);
  EXPECT_LE(moved.last_peak_bytes, budget);
  EXPECT_FALSE(std::filesystem::exists(small.path() / "moved/moved-states"));
  for (const char* name : {"roomy", "moved"}) {
    EXPECT_EQ(losses_of(small.path() / name), losses_of(small.path() / "plain")) << name;
    EXPECT_EQ(newest_values(small.path() / name), newest_values(small.path() / "plain")) << name;
  }
}

}  // namespace
}  // namespace zero::virtual_device::testing

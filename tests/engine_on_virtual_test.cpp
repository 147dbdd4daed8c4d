// The tests of the engine that this program is made of, on virtual devices: their checks must find nothing,
// and their memory must be free at the end of each rank.
#include <gtest/gtest.h>

#include "support/test_device.h"
#include "support/virtual_ranks.h"

namespace {
using namespace zero::testing;
namespace devices = zero::virtual_device::testing;

void expect_free_memory() {
  for (const auto& [purpose, bytes] : devices::own_devices().report().used_by_purpose)
    ADD_FAILURE() << bytes << " bytes of " << purpose << " are left";
}

const bool is_set = [] {
  test_place() = {.device = devices::on_virtual_devices().mesh.device,
                  .prepare =
                      [](RankOptions& options) {
                        const RankOptions there = devices::on_virtual_devices();
                        options.mesh.device = there.mesh.device;
                        options.mesh.own_transport = there.mesh.own_transport;
                      },
                  .begin_rank = [] { devices::own_devices(); },
                  .end_rank =
                      [] {
                        devices::expect_no_faults();
                        expect_free_memory();
                      }};
  return true;
}();

TEST(OnVirtual, RanksRunWhereTheProgramIsTold) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    EXPECT_TRUE(is_set);
    EXPECT_EQ(mesh.device(), test_device());
    EXPECT_FALSE(mesh.device().is_cpu());
  });
}

}  // namespace

#pragma once
// Every collective once, on any device: for comparing a device's bits with the CPU's.

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/ranks.h"

namespace zero::testing {

/// In a rank of three or more: hands back what each collective gave, of values that differ from rank to rank.
inline void every_collective(const Mesh& mesh) {
  const Group world = mesh.world();
  const auto options = at::TensorOptions(mesh.device()).dtype(at::kFloat);
  torch::manual_seed(1 + static_cast<uint64_t>(mesh.rank()));
  const auto there = [&](const at::Tensor& tensor) { return tensor.to(mesh.device()); };
  at::Tensor own = there(at::randn({5})), all = at::empty({5 * mesh.size()}, options);
  world.all_gather(all, own, "gather").wait();
  at::Tensor sum = at::empty({7}, options);
  world.reduce_scatter(sum, there(at::randn({7 * mesh.size()}).to(at::kBFloat16)), false, "scatter").wait();
  world.reduce_scatter(sum, there(at::randn({7 * mesh.size()})), true, "scatter more").wait();
  at::Tensor total = there(at::randn({100}));
  world.all_reduce(total, Group::Reduce::Sum, "sum").wait();
  at::Tensor large = there(at::randn({70'001}));
  world.all_reduce(large, Group::Reduce::Max, "max").wait();
  at::Tensor told = there(at::randn({9}));
  world.broadcast(told, 1, "tell").wait();
  at::Tensor passed = there(at::randn({4}));
  Work sent = mesh.rank() == 0 ? world.send(passed, 2, 7, "pass") : Work();
  if (mesh.rank() == 2) world.receive(passed, 0, 7, "pass").wait();
  sent.wait();
  world.barrier("end");
  for (const at::Tensor& tensor : {all, sum, total, large, told, passed})
    hand_back(tensor.cpu().contiguous());
}

/// `device` gives the CPU's bits; `after` runs in each of its ranks at the end.
inline void expect_the_cpus_collectives(int ranks, const RankOptions& device,
                                        const std::function<void(const Mesh&)>& after) {
  const auto on_host = run_ranks(ranks, every_collective);
  const auto on_device = run_ranks(
      ranks,
      [&](const Mesh& mesh) {
        every_collective(mesh);
        after(mesh);
      },
      device);
  ASSERT_EQ(on_host.size(), on_device.size());
  for (size_t rank = 0; rank < on_host.size(); ++rank) {
    EXPECT_FALSE(on_host[rank].bytes.empty());
    EXPECT_EQ(on_host[rank].bytes, on_device[rank].bytes) << "rank " << rank;
  }
}

}  // namespace zero::testing

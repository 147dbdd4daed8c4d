// Collectives between virtual devices: the CPU's bits, on a stream of their own, in time that all ranks
// share.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include "support/collective_round.h"
#include "support/virtual_ranks.h"

namespace zero::virtual_device::testing {
namespace {

using torch::Tensor;
using zero::testing::run_ranks;

torch::TensorOptions here(const Mesh& mesh, at::ScalarType type = at::kFloat) {
  return torch::TensorOptions(mesh.device()).dtype(type);
}

TEST(VirtualMesh, CollectivesHaveTheCpusBits) {
  zero::testing::expect_the_cpus_collectives(3, on_virtual_devices(),
                                             [](const Mesh&) { expect_no_faults(); });
}

// One that reads an output too early, or writes an input too early, is named; on a GPU both would work by
// luck.
TEST(VirtualMesh, WhatComesBeforeTheWaitIsNamed) {
  run_ranks(
      2,
      [](Mesh mesh) {
        const auto faults_of = [&](const std::function<void(Tensor&, Tensor&, Work&)>& use) {
          Tensor in = at::ones({8}, here(mesh)), out = at::empty({16}, here(mesh));
          Work work = mesh.world().all_gather(out, in, "gather");
          use(in, out, work);
          work.wait();
          own_devices().synchronize();
          std::string text;
          for (const Fault& fault : own_devices().faults()) text += fault.text + "\n";
          own_devices().clear_faults();
          return text;
        };
        EXPECT_EQ(faults_of([](Tensor&, Tensor& out, Work& work) { work.wait(), out.add_(1); }), "");
        const std::string early = faults_of([](Tensor&, Tensor& out, Work&) { out.neg(); });
        EXPECT_NE(early.find("all_gather"), std::string::npos) << early;
        EXPECT_NE(early.find("neg"), std::string::npos) << early;
        const std::string late = faults_of([](Tensor& in, Tensor&, Work&) { in.add_(1); });
        EXPECT_NE(late.find("all_gather"), std::string::npos) << late;
        EXPECT_NE(late.find("add_"), std::string::npos) << late;
      },
      on_virtual_devices());
}

// Rank 1 computes for long before: both end at the same time, and what computes meanwhile is not held up.
TEST(VirtualMesh, ClocksMeetAndComputingGoesOn) {
  const auto results = run_ranks(
      2,
      [](Mesh mesh) {
        const Tensor factor = at::ones({1024, 1024}, here(mesh)), in = at::ones({8 << 20}, here(mesh));
        Tensor out = at::empty({16 << 20}, here(mesh));
        mesh.world().barrier("begin");
        if (mesh.rank() == 1)
          for (int i = 0; i < 50; ++i) at::mm(factor, factor);
        Work work = mesh.world().all_gather(out, in, "gather");
        for (int i = 0; i < 10; ++i) at::mm(factor, factor);
        work.wait();
        own_devices().synchronize();
        const double ns = own_devices().simulated_ns();
        zero::testing::hand_back(std::string_view(reinterpret_cast<const char*>(&ns), sizeof ns));
        expect_no_faults();
      },
      on_virtual_devices());
  const auto ns_of = [&](size_t rank) {
    double ns = 0;
    EXPECT_EQ(results[rank].bytes.size(), sizeof ns);
    std::memcpy(&ns, results[rank].bytes.data(), sizeof ns);
    return ns;
  };
  const double gather_ns = 1000 + 4.0 * (8 << 20) / 100, product_ns = 2.0 * 1024 * 1024 * 1024 / 100e3;
  EXPECT_NEAR(ns_of(0), ns_of(1), 3 * 4000) << "they waited for each other";
  EXPECT_GT(ns_of(0), 50 * product_ns + gather_ns);
  EXPECT_LT(ns_of(1), 55 * product_ns + gather_ns) << "the last ten are hidden";
}

}  // namespace
}  // namespace zero::virtual_device::testing

// An engine on a mesh with a tensor-parallel axis: what ranks agree on is agreed by all, and each element
// counts once.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "support/cut_net.h"
#include "support/expect_error.h"
#include "support/meeting.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/initial_values.h"
#include "zero/mesh.h"

namespace {

using namespace zero::testing;
using zero::Box;
using zero::Mesh;
using zero::ParameterPart;

constexpr int64_t kIn = CutNetImpl::kIn, kOut = CutNetImpl::kOut;

void expect_equal_to_one_process(int stage) {
  run_ranks(
      4,
      [&](Mesh mesh) {
        const zero::Group dp = mesh.group("dp"), tp = mesh.group("tp");
        const zero::AdamW optimizer{.lr = 0.05, .weight_decay = 0.1};
        CutNet net(tp.rank(), 2), whole(0, 1);
        if (mesh.rank() > 0) {
          torch::NoGradGuard no_grad;
          net->bias.fill_(mesh.rank());  // rank 0's counts, along both axes
        }
        zero::EngineOptions options{.stage = stage, .gradient_clipping = 0.5};
        zero::Engine one(*whole, optimizer, options, Mesh::join({}));
        options.parts = parts_of(net);
        zero::Engine engine(*net, optimizer, options, mesh);
        const auto sum_over_tp = [&](const at::Tensor& tensor) {
          tp.all_reduce(tensor, zero::Group::Reduce::Sum, "activations").wait();
        };
        for (int64_t step = 0; step < 4; ++step) {
          const torch::Tensor x = CutNetImpl::batch(step);
          engine.backward(
              engine.forward([&] { return net->loss(x.narrow(0, 2 * dp.rank(), 2), sum_over_tp); }));
          one.backward(one.forward([&] { return whole->loss(x, [](const at::Tensor&) {}); }));
          const double norm = engine.step().clip().norm_before, expected = one.step().clip().norm_before;
          EXPECT_NEAR(norm, expected, 1e-6 * expected) << "stage " << stage << " step " << step;
        }
        for (const std::string name : {"bias", "last.weight", "last.bias"})
          EXPECT_TRUE(at::allclose(engine.full_parameter(name), one.full_parameter(name), 1e-5, 1e-6))
              << name;
        const at::Tensor weight = one.full_parameter("weight").narrow(1, net->from, net->count);
        EXPECT_TRUE(at::allclose(engine.full_parameter("weight"), weight, 1e-5, 1e-6));
        // Its second half had no gradient where it is, and decays all the same, as it does in the whole.
        const at::Tensor gain = one.full_parameter("gain").narrow(0, net->from, net->count);
        EXPECT_TRUE(at::allclose(engine.full_parameter("gain"), gain, 1e-5, 1e-6));
        EXPECT_FALSE(at::allclose(gain, CutNetImpl::whole({kIn}, 3).narrow(0, net->from, net->count)));
      },
      two_by_two());
}

TEST(EngineAxes, NormAndStepsAreThoseOfOneProcessAtStage0) { expect_equal_to_one_process(0); }
TEST(EngineAxes, NormAndStepsAreThoseOfOneProcessAtStage3) { expect_equal_to_one_process(3); }

// Also where the infinite value is in a copy that the norm does not count.
TEST(EngineAxes, OneRanksInfinityMakesAllSkip) {
  for (const bool in_copy : {false, true})
    run_ranks(
        4,
        [&](Mesh mesh) {
          const zero::Group dp = mesh.group("dp"), tp = mesh.group("tp");
          CutNet net(tp.rank(), 2);
          zero::Engine engine(*net, zero::AdamW{.lr = 0.05}, {.stage = 2, .parts = parts_of(net)}, mesh);
          bool infinite = true;
          if (dp.rank() == 1 && tp.rank() == 1)
            (in_copy ? net->bias : net->weight).register_hook([&](const at::Tensor& gradient) {
              return infinite ? gradient * std::numeric_limits<float>::infinity() : gradient;
            });
          const auto sum_over_tp = [&](const at::Tensor& tensor) {
            tp.all_reduce(tensor, zero::Group::Reduce::Sum, "activations").wait();
          };
          for (const bool skips : {true, false}) {
            infinite = skips;
            const at::Tensor before = engine.full_parameter("last.weight");
            const torch::Tensor x = CutNetImpl::batch(0).narrow(0, 2 * dp.rank(), 2);
            engine.backward(engine.forward([&] { return net->loss(x, sum_over_tp); }));
            EXPECT_EQ(engine.step().skipped(), skips) << "rank " << mesh.rank();
            EXPECT_EQ(at::equal(engine.full_parameter("last.weight"), before), skips);
          }
        },
        two_by_two());
}

TEST(EngineAxes, PartsThatDoNotFitAreRefused) {
  run_ranks(
      4,
      [](Mesh mesh) {
        const auto make = [&](std::map<std::string, ParameterPart> parts) {
          CutNet net(mesh.group("tp").rank(), 2);
          zero::Engine engine(*net, zero::SGD{}, {.parts = std::move(parts)}, mesh);
        };
        const Box half{{0, 0}, {kOut, kIn / 2}};
        EXPECT_ERROR(make({{"wait", {{kOut, kIn}, half, {}}}}), Config, "no parameter wait");
        EXPECT_ERROR(make({{"weight", {{kOut, kIn}, Box{{0, 0}, {kOut, 2}}, {}}}}), Config, "weight");
        EXPECT_ERROR(make({{"weight", {{kOut, 3}, half, {}}}}), Config, "[6, 3]");
        EXPECT_ERROR(make({{"weight", {{kOut, kIn}, half, {"pp"}}}}), Config, "axis \"pp\"");
        EXPECT_ERROR(make({{"weight", {{kOut, kIn}, half, {"dp"}}}}), Config, "axis \"dp\"");
        const auto make_cut = [&](const zero::OptimizerSpec& rule) {
          CutNet net(mesh.group("tp").rank(), 2);
          zero::Engine engine(*net, rule, {.parts = parts_of(net)}, mesh);
        };
        EXPECT_ERROR(make_cut(zero::Muon{}), Unsupported, "Muon needs the whole matrix");
        // Said to be the same along tp, and cut all the same.
        const Box own{{0, kIn / 2 * mesh.group("tp").rank()}, {kOut, kIn / 2}};
        EXPECT_ERROR(make({{"weight", {{kOut, kIn}, own, {"tp"}}}}), Config,
                     "holds other replicated parameters");
      },
      two_by_two());
}

// A slice is a box of the whole weight: one process reads what four ranks wrote, and they read it again.
TEST(EngineAxes, ACheckpointIsThatOfTheWholeModel) {
  const TemporaryDirectory folder;
  run_ranks(
      4,
      [&](Mesh mesh) {
        const zero::Group dp = mesh.group("dp"), tp = mesh.group("tp");
        const zero::AdamW optimizer{.lr = 0.05};
        CutNet net(tp.rank(), 2), again(tp.rank(), 2), whole(0, 1);
        zero::Engine engine(*net, optimizer, {.stage = 1, .parts = parts_of(net)}, mesh);
        const auto sum_over_tp = [&](const at::Tensor& tensor) {
          tp.all_reduce(tensor, zero::Group::Reduce::Sum, "activations").wait();
        };
        const torch::Tensor x = CutNetImpl::batch(0).narrow(0, 2 * dp.rank(), 2);
        engine.backward(engine.forward([&] { return net->loss(x, sum_over_tp); }));
        engine.step();
        const auto path = engine.save(folder.path());
        zero::Engine resumed(*again, optimizer, {.stage = 3, .parts = parts_of(again)}, mesh);
        zero::Engine one(*whole, optimizer, {}, Mesh::join({}));
        resumed.load(path);
        one.load(path);
        for (const std::string name : {"weight", "gain", "bias", "last.weight", "last.bias"}) {
          const at::Tensor held = engine.full_parameter(name);
          EXPECT_TRUE(at::equal(resumed.full_parameter(name), held)) << name;
          if (!parts_of(net).contains(name)) {
            EXPECT_TRUE(at::equal(one.full_parameter(name), held)) << name;
          }
        }
        const at::Tensor slice = one.full_parameter("weight").narrow(1, net->from, net->count);
        EXPECT_TRUE(at::equal(slice, engine.full_parameter("weight")));
        const at::Tensor moments =
            one.full_optimizer_state("weight", "exp_avg").narrow(1, net->from, net->count);
        EXPECT_TRUE(at::equal(moments, engine.full_optimizer_state("weight", "exp_avg")));
        EXPECT_TRUE(at::equal(moments, resumed.full_optimizer_state("weight", "exp_avg")));
      },
      two_by_two());
}

/// Values of the whole model, of which each rank reads its slice.
class WholeValues : public zero::InitialValues {
 public:
  bool holds(const std::string& name) const override { return name == "weight" || name == "gain"; }
  void read(const std::string& name, const zero::BoxRange& range, at::Tensor out) const override {
    const at::Tensor whole =
        name == "weight" ? CutNetImpl::whole({kOut, kIn}, 11) : CutNetImpl::whole({kIn}, 13);
    zero::CommonRuns runs(zero::BoxRange::whole(whole.sizes()), range);
    while (const auto run = runs.next())
      out.narrow(0, run->from_b, run->numel).copy_(whole.view({-1}).narrow(0, run->from_a, run->numel));
  }
};

TEST(Axes, InitialValuesAreReadByTheSlice) {
  run_ranks(
      4,
      [&](Mesh mesh) {
        CutNet net(mesh.group("tp").rank(), 2);
        zero::Engine engine(
            *net, zero::AdamW{},
            {.stage = 3, .initial_values = std::make_shared<WholeValues>(), .parts = parts_of(net)}, mesh);
        EXPECT_TRUE(at::equal(engine.full_parameter("weight"),
                              CutNetImpl::whole({kOut, kIn}, 11).narrow(1, net->from, net->count)));
        EXPECT_TRUE(at::equal(engine.full_parameter("gain"),
                              CutNetImpl::whole({kIn}, 13).narrow(0, net->from, net->count)));
      },
      two_by_two());
}

/// Two layers of one size, with a sum over the tensor-parallel ranks after each.
struct TwoLayers {
  torch::nn::Sequential layers{torch::nn::Linear(8, 8), torch::nn::Linear(8, 8)};

  torch::Tensor loss(size_t first, const zero::Group& tp) {
    torch::Tensor x = torch::ones({1, 8});
    for (const size_t layer : {first, 1 - first}) {
      x = layers->at<torch::nn::LinearImpl>(layer).forward(x);
      tp.all_reduce(x.detach(), zero::Group::Reduce::Sum, "sum of " + std::to_string(layer)).wait();
    }
    return x.sum();
  }
};

/// Errors of four ranks, where `first_layer` says with which layer each begins. None leaves before all have
/// failed.
std::vector<RankResult> run_in_orders(const std::function<size_t(const Mesh&)>& first_layer) {
  RankOptions options = two_by_two();
  options.mesh.timeout = std::chrono::seconds(5);
  const Meeting failed(4);
  return collect_ranks(
      4,
      [&](const Mesh& mesh) {
        TwoLayers net;
        zero::EngineOptions sharded{.stage = 3};
        sharded.budget_bytes = sharded.prefetch_bytes = 0;
        sharded.share_parameters = false;
        zero::Engine engine(*net.layers, zero::AdamW{}, sharded, mesh);
        try {
          engine.backward(engine.forward([&] { return net.loss(first_layer(mesh), mesh.group("tp")); }));
          engine.step();
        } catch (const zero::Error&) {
          failed.come();
          throw;
        }
      },
      options);
}

void expect_in(const RankResult& result, std::initializer_list<std::string> texts) {
  EXPECT_EQ(result.exit, 1);
  for (const std::string& text : texts)
    EXPECT_NE(result.error.find(text), std::string::npos) << text << " is not in: " << result.error;
}

// Along "dp" all ranks agree.
TEST(EngineAxes, OrdersThatDifferAlongTheTensorAxisAreNamed) {
  const auto results =
      run_in_orders([](const Mesh& mesh) { return static_cast<size_t>(mesh.group("tp").rank()); });
  for (int rank = 0; rank < 4; ++rank)
    expect_in(
        results[static_cast<size_t>(rank)],
        {"rank " + std::to_string(rank) + ", all_reduce sum of " + std::to_string(rank % 2),
         "rank " + std::to_string(rank ^ 1) + " issued all_reduce sum of " + std::to_string(1 - rank % 2),
         "make all ranks run the same modules in the same order"});
}

// Rank 3 gathers another layer than rank 1, and the others wait for these two along "tp".
TEST(EngineAxes, OneRankThatGoesAnotherWayIsNamedAlongBothAxes) {
  const auto results = run_in_orders([](const Mesh& mesh) { return mesh.rank() == 3 ? 1UL : 0UL; });
  expect_in(results[1], {"rank 3 issued all_gather 1 ", "run the same modules in the same order"});
  expect_in(results[3], {"rank 1 issued all_gather 0 ", "run the same modules in the same order"});
  expect_in(results[0],
            {"all_reduce sum of 0", "rank 1 has not arrived", "waits in all_gather 0 ", "of group dp"});
  expect_in(results[2],
            {"all_reduce sum of 0", "rank 3 has not arrived", "waits in all_gather 1 ", "of group dp"});
}

}  // namespace

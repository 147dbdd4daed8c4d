// An engine on a mesh with a tensor-parallel axis: what ranks agree on is agreed by all, and each element
// counts once.
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/initial_values.h"
#include "zero/mesh.h"

namespace {

using zero::Box;
using zero::Mesh;
using zero::ParameterPart;

constexpr int64_t kIn = 8, kOut = 6;

/// A linear layer of which `tp` ranks hold a slice of the columns each, and all the bias; then a whole one.
/// `gain` is cut too, and only the first rank's half of it is used.
struct CutNetImpl : torch::nn::Module {
  CutNetImpl(int tp, int ranks)
      : from(kIn / ranks * tp),
        count(kIn / ranks),
        weight(register_parameter("weight", whole({kOut, kIn}, 1).narrow(1, from, count).clone())),
        bias(register_parameter("bias", whole({kOut}, 2))),
        gain(register_parameter("gain", whole({kIn}, 3).narrow(0, from, count).clone())),
        last(register_module("last", torch::nn::Linear(kOut, 3))) {
    torch::NoGradGuard no_grad;
    last->weight.copy_(whole({3, kOut}, 4));
    last->bias.copy_(whole({3}, 5));
  }

  static torch::Tensor whole(torch::IntArrayRef shape, uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    return torch::randn(shape, generator);
  }

  /// x [n, kIn]. `sum` adds up a tensor over the ranks.
  torch::Tensor loss(torch::Tensor x, const std::function<void(at::Tensor)>& sum) {
    x = x.narrow(1, from, count);
    if (from == 0)
      x = torch::cat(
          {x.narrow(1, 0, kIn / 2) * gain.narrow(0, 0, kIn / 2), x.narrow(1, kIn / 2, count - kIn / 2)}, 1);
    const torch::Tensor part = torch::nn::functional::linear(x, weight);
    torch::Tensor total = part.detach().clone();
    sum(total);
    // The sum's value, and the gradient of this rank's part.
    const torch::Tensor y = part + (total - part.detach());
    return last(torch::tanh(y + bias)).square().mean();
  }

  int64_t from, count;
  torch::Tensor weight, bias, gain;
  torch::nn::Linear last;
};
TORCH_MODULE(CutNet);

std::map<std::string, ParameterPart> parts_of(const CutNet& net) {
  return {{"weight", {{kOut, kIn}, Box{{0, net->from}, {kOut, net->count}}, {}}},
          {"gain", {{kIn}, Box{{net->from}, {net->count}}, {}}}};
}

torch::Tensor batch(int64_t step) { return CutNetImpl::whole({4, kIn}, 100 + static_cast<uint64_t>(step)); }

zero::testing::RankOptions two_by_two() {
  zero::testing::RankOptions options;
  options.mesh.axes = {{"dp", 2}, {"tp", 2}};
  return options;
}

void expect_equal_to_one_process(int stage) {
  zero::testing::run_ranks(
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
          const torch::Tensor x = batch(step);
          engine.backward(
              engine.forward([&] { return net->loss(x.narrow(0, 2 * dp.rank(), 2), sum_over_tp); }));
          one.backward(one.forward([&] { return whole->loss(x, [](const at::Tensor&) {}); }));
          const double norm = engine.step().clip.norm_before, expected = one.step().clip.norm_before;
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
    zero::testing::run_ranks(
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
            const torch::Tensor x = batch(0).narrow(0, 2 * dp.rank(), 2);
            engine.backward(engine.forward([&] { return net->loss(x, sum_over_tp); }));
            EXPECT_EQ(engine.step().skipped, skips) << "rank " << mesh.rank();
            EXPECT_EQ(at::equal(engine.full_parameter("last.weight"), before), skips);
          }
        },
        two_by_two());
}

TEST(EngineAxes, PartsThatDoNotFitAreRefused) {
  zero::testing::run_ranks(
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
        // Said to be the same along tp, and cut all the same.
        const Box own{{0, kIn / 2 * mesh.group("tp").rank()}, {kOut, kIn / 2}};
        EXPECT_ERROR(make({{"weight", {{kOut, kIn}, own, {"tp"}}}}), Config,
                     "holds other replicated parameters");
      },
      two_by_two());
}

// A slice is a box of the whole weight: one process reads what four ranks wrote, and they read it again.
TEST(EngineAxes, ACheckpointIsThatOfTheWholeModel) {
  const zero::testing::TemporaryDirectory folder;
  zero::testing::run_ranks(
      4,
      [&](Mesh mesh) {
        const zero::Group dp = mesh.group("dp"), tp = mesh.group("tp");
        const zero::AdamW optimizer{.lr = 0.05};
        CutNet net(tp.rank(), 2), again(tp.rank(), 2), whole(0, 1);
        zero::Engine engine(*net, optimizer, {.stage = 1, .parts = parts_of(net)}, mesh);
        const auto sum_over_tp = [&](const at::Tensor& tensor) {
          tp.all_reduce(tensor, zero::Group::Reduce::Sum, "activations").wait();
        };
        const torch::Tensor x = batch(0).narrow(0, 2 * dp.rank(), 2);
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
  zero::testing::run_ranks(
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

}  // namespace

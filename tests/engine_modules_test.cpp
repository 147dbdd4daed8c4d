// Modules that are not a plain chain, and what the engine refuses. Each case trains under the engine and in
// one process alike.
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/script.h>
#include <torch/utils.h>

#include <functional>

#include "support/meeting.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/lazy.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
namespace nn = torch::nn;

template <class F>
std::string error_of(F&& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Trains `make()`'s module four steps with loss(module, step, part, parts) on every stage, and compares its
// parameters with one process that sees all parts. Adam with no decay: a parameter without gradient must not
// move.
template <class Module>
void expect_trains_alike(int ranks, const std::function<Module()>& make,
                         const std::function<Tensor(Module&, int step, int part, int parts)>& loss,
                         int last_stage = 3) {
  run_ranks(ranks, [=](const zero::Mesh& mesh) {
    torch::manual_seed(3);
    Module plain = make();
    plain->to(test_device());
    std::vector<Tensor> trained;
    for (auto& p : plain->parameters())
      if (p.requires_grad() &&
          std::none_of(trained.begin(), trained.end(), [&](const Tensor& t) { return t.is_same(p); }))
        trained.push_back(p);
    torch::optim::Adam optimizer(trained, torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      for (int part = 0; part < ranks; ++part) {
        Tensor l = loss(plain, step, part, ranks) / ranks;
        if (l.requires_grad()) l.backward();
      }
      optimizer.step();
    }
    for (int stage = 0; stage <= last_stage; ++stage) {
      for (int64_t budget : {int64_t{0}, int64_t{-1}}) {
        if (stage < 3 && budget == 0) continue;
        torch::manual_seed(3);
        Module model = zero::lazily(make);
        zero::EngineOptions options{.stage = stage};
        options.budget_bytes = budget;
        options.share_parameters = stage < 3 && stage > 1;  // stage 3 is to come and go
        options.group_numel = 100;
        zero::Engine engine(*model, zero::Adam{.lr = 1e-2}, options, mesh);
        for (int step = 0; step < 4; ++step) {
          Tensor l = engine.forward([&] { return loss(model, step, mesh.rank(), ranks); });
          engine.backward(l);
          engine.step();
        }
        for (const auto& item : plain->named_parameters())
          EXPECT_TRUE(torch::allclose(engine.full_parameter(item.key()),
                                      item.value().detach().cpu().to(torch::kFloat), 1e-4, 1e-6))
              << item.key() << ", stage " << stage << ", budget " << budget;
      }
    }
  });
}

Tensor input(int step, int part, std::vector<int64_t> shape) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(17 * step + part));
  return torch::randn(shape, generator, torch::kFloat).to(test_device());
}

TEST(Modules, ParametersWithoutGradientInAStep) {
  struct Net : nn::Module {
    nn::Linear a{nullptr}, unused{nullptr}, sometimes{nullptr};
    Net() {
      a = register_module("a", nn::Linear(5, 5));
      unused = register_module("unused", nn::Linear(5, 5));
      sometimes = register_module("sometimes", nn::Linear(5, 5));
    }
  };
  expect_trains_alike<std::shared_ptr<Net>>(
      2, [] { return std::make_shared<Net>(); },
      [](auto& net, int step, int part, int) {
        Tensor x = net->a(input(step, part, {3, 5}));
        if (step % 2 == 1) x = net->sometimes(x);  // moments must rest in the other steps
        return x.square().mean();
      });
}

struct ListNet : nn::Module {
  nn::ModuleList list{nullptr};
  ListNet() {
    list = register_module("list", nn::ModuleList());
    for (int i = 0; i < 3; ++i) list->push_back(nn::Linear(5, 5));
  }
  Tensor layer(size_t i, const Tensor& x) { return list[i]->as<nn::Linear>()->forward(x); }
};

// Only rank 0 has a gradient for the middle unit, so only its backward reads that unit.
Tensor one_sided_loss(std::shared_ptr<ListNet>& net, int step, int part, int) {
  Tensor x = net->layer(0, input(step, part, {3, 5}));
  Tensor y = net->layer(1, x);
  return net->layer(2, x + (part == 0 ? y : y.detach())).square().mean();
}

TEST(Modules, GradientOnOneRankOnly) {
  expect_trains_alike<std::shared_ptr<ListNet>>(
      2, [] { return std::make_shared<ListNet>(); }, one_sided_loss, /*last_stage=*/2);
}

TEST(Modules, RanksThatNeedDifferentUnitsAreNamed) {
  RankOptions options;
  options.mesh.timeout = std::chrono::seconds(5);
  const Meeting failed(2);  // who fails first stays, so that the other one may look what it did
  const auto results = collect_ranks(
      2,
      [&](const zero::Mesh& mesh) {
        auto net = std::make_shared<ListNet>();
        zero::EngineOptions sharded{.stage = 3};
        sharded.budget_bytes = 0;
        sharded.share_parameters = false;
        zero::Engine engine(*net, zero::Adam{}, sharded, mesh);
        try {
          engine.backward(engine.forward([&] { return one_sided_loss(net, 0, mesh.rank(), 2); }));
          engine.step();
        } catch (const zero::Error&) {
          failed.come();
          throw;
        }
      },
      options);
  for (const auto& result : results) {
    EXPECT_EQ(result.exit, 1);
    EXPECT_NE(result.error.find("list.1"), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("different things"), std::string::npos) << result.error;
  }
}

struct TiedNet : nn::Module {
  nn::Linear first{nullptr}, frozen{nullptr};
  Tensor head, nothing, scale;
  TiedNet() {
    first = register_module("first", nn::Linear(6, 6));
    frozen = register_module("frozen", nn::Linear(6, 6));
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
    head = register_parameter("head", first->weight);  // a second name for the same tensor
    nothing = register_parameter("nothing", torch::empty({0, 4}));
    scale = register_parameter("scale", torch::ones({}));
  }
};

TEST(Modules, FrozenTiedSharedTwiceAndZeroSized) {
  expect_trains_alike<std::shared_ptr<TiedNet>>(
      3, [] { return std::make_shared<TiedNet>(); },
      [](auto& net, int step, int part, int) {
        Tensor x = input(step, part, {4, 6});
        x = torch::relu(net->first(x));
        x = net->frozen(x);
        x = torch::relu(net->first(x));  // the same unit twice in a step
        x = torch::matmul(x, net->head) * net->scale;
        return x.square().mean() + net->nothing.sum();
      });
}

TEST(Modules, SeveralForwardsBeforeOneBackward) {
  expect_trains_alike<SmallNet>(
      2, [] { return SmallNet(13, 6, 3); },
      [](auto& net, int step, int part, int) {
        Batch one = batch_of(step, 4, 13), two = batch_of(step + 50, 4, 13);
        Tensor a = net->loss(one.tokens.narrow(0, part, 1), one.targets.narrow(0, part, 1));
        Tensor b = net->loss(two.tokens.narrow(0, part, 1), two.targets.narrow(0, part, 1));
        return a + b;
      });
}

TEST(Modules, SubmodulesUsedConditionallyInAnotherOrder) {
  expect_trains_alike<SmallNet>(
      2, [] { return SmallNet(13, 6, 4); },
      [](auto& net, int step, int part, int) {
        Batch batch = batch_of(step, 2, 13).rows(part, 1);
        Tensor x = net->embedding(batch.tokens);
        std::vector<int> order = step % 2 == 0 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{3, 1, 1, 0};
        for (int i : order) x = net->layers[static_cast<size_t>(i)]->template as<BlockImpl>()->forward(x);
        return torch::nn::functional::linear(net->norm(x), net->embedding->weight).square().mean();
      });
}

struct MixedNet : nn::Module {
  nn::Linear narrow{nullptr}, wide{nullptr};
  nn::BatchNorm1d norm{nullptr};
  MixedNet() {
    narrow = register_module("narrow", nn::Linear(8, 8));
    wide = register_module("wide", nn::Linear(8, 8));
    norm = register_module("norm", nn::BatchNorm1d(8));
    narrow->to(torch::kBFloat16);
  }
  Tensor forward(const Tensor& x) { return norm(wide(narrow(x.to(torch::kBFloat16)).to(torch::kFloat))); }
};

TEST(Modules, MixedDtypesKeepTheirOwnAndBuffersMove) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    auto model = std::make_shared<MixedNet>();
    zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, {.stage = 3}, mesh);
    EXPECT_EQ(model->narrow->weight.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(model->wide->weight.scalar_type(), torch::kFloat);
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
      Tensor x = input(0, mesh.rank(), {16, 8});
      Tensor l = engine.forward([&] { return (model->forward(x) - x).square().mean(); });
      engine.backward(l);
      engine.step();
      (step == 0 ? first : last) = l.item<double>();
    }
    EXPECT_LT(last, 0.8 * first);
    EXPECT_EQ(model->norm->num_batches_tracked.item<int64_t>(), 30);
  });
}

TEST(Modules, TorchScriptModulesFromAFile) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    torch::jit::Module block("block");
    torch::manual_seed(1);
    block.register_parameter("w", torch::randn({6, 6}).set_requires_grad(true), false);
    block.register_parameter("b", torch::randn({6}).set_requires_grad(true), false);
    block.define(
        "def forward(self, x):\n  return torch.relu(torch.matmul(x, self.w) + self.b) * 2 + "
        "torch.sigmoid(x)\n");
    torch::jit::Module module("m");
    module.register_module("block", block);
    module.register_parameter("out", torch::randn({6, 2}).set_requires_grad(true), false);
    module.define(
        "def forward(self, x):\n  for i in range(2):\n    x = self.block.forward(x)\n  return "
        "torch.matmul(x, self.out)\n");
    std::stringstream file;
    module.save(file);

    auto run = [&](bool with_engine, int stage) {
      file.clear();
      file.seekg(0);
      torch::jit::Module loaded = torch::jit::load(file);
      if (!with_engine) loaded.to(test_device());
      std::vector<Tensor> result;
      std::vector<Tensor> parameters;
      for (const auto& p : loaded.parameters()) parameters.push_back(p);
      if (!with_engine) {
        torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(1e-2));
        for (int step = 0; step < 4; ++step) {  // enough for the profiling executor to optimise
          optimizer.zero_grad();
          for (int part = 0; part < 2; ++part)
            (loaded.forward({input(step, part, {3, 6})}).toTensor().square().mean() / 2).backward();
          optimizer.step();
        }
        for (const auto& p : loaded.named_parameters()) result.push_back(p.value.detach().cpu());
        return result;
      }
      zero::EngineOptions options{.stage = stage};
      options.budget_bytes = 0;
      options.share_parameters = stage == 2;
      options.group_numel = 20;
      zero::Engine engine(loaded, zero::Adam{.lr = 1e-2}, options, mesh);
      for (int step = 0; step < 4; ++step) {
        Tensor l = engine.forward([&] {
          return loaded.forward({input(step, mesh.rank(), {3, 6})}).toTensor().square().mean();
        });
        engine.backward(l);
        engine.step();
      }
      for (const auto& p : loaded.named_parameters()) result.push_back(engine.full_parameter(p.name));
      return result;
    };
    const auto expected = run(false, 0);
    for (int stage : {0, 2, 3}) {
      const auto got = run(true, stage);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-4, 1e-6)) << stage << " " << i;
    }
  });
}

// Processors of different makers compute initial values that differ in their last bits.
TEST(Modules, ReplicasTakeTheFirstOnesBits) {
  struct Way {
    int stage, group;
    at::ScalarType dtype;
    bool split;
  };
  run_ranks(4, [](const zero::Mesh& mesh) {
    for (const Way& way :
         {Way{0, 0, at::kFloat, true}, Way{1, 2, at::kFloat, true}, Way{3, 2, at::kFloat, true},
          Way{0, 0, at::kBFloat16, true}, Way{3, 2, at::kBFloat16, true}, Way{3, 2, at::kBFloat16, false}}) {
      torch::manual_seed(3);
      SmallNet model;
      std::vector<Tensor> first;
      const torch::NoGradGuard no_grad;
      for (Tensor& p : model->parameters()) {
        first.push_back(p.clone());
        if (mesh.rank() >= std::max(1, way.group)) p.mul_(1 + 1e-4 * mesh.rank());
      }
      zero::EngineOptions options{.stage = way.stage, .dtype = way.dtype};
      options.broadcast_initial_values = false;
      options.share_parameters = false;
      options.shard_group_ranks = way.group;
      options.split_master = way.split;
      zero::Engine engine(*model, zero::Adam{.lr = 1e-2}, options, mesh);
      const zero::GatherScope scope(engine);  // bf16 values may be read in one only
      size_t i = 0;
      for (const auto& item : model->named_parameters()) {
        const double most = way.split && way.dtype == at::kBFloat16 ? 1e-7 : 0;  // as Remainder says
        EXPECT_TRUE(torch::allclose(engine.full_parameter(item.key()), first[i], most, 0))
            << item.key() << ", stage " << way.stage << ", " << way.dtype;
        if (way.stage < 3) {
          EXPECT_TRUE(torch::equal(item.value().cpu(), first[i].to(way.dtype))) << item.key();
        }
        ++i;
      }
    }
  });
}

TEST(Modules, EvaluationLeavesNoTrace) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    for (int stage : {1, 3}) {
      torch::manual_seed(1);
      SmallNet model = zero::lazily([] { return SmallNet(); });
      torch::manual_seed(1);
      SmallNet plain;
      plain->to(test_device());
      zero::Engine engine(*model, zero::AdamW{}, {.stage = stage}, mesh);
      Batch batch = batch_of(0, 3);
      model->eval();
      Tensor logits;
      {
        torch::NoGradGuard no_grad;
        logits = engine.forward([&] { return model->forward(batch.tokens); });
      }
      EXPECT_TRUE(torch::equal(logits, plain->forward(batch.tokens)));
      EXPECT_FALSE(logits.requires_grad());
      EXPECT_FALSE(engine.step().stepped);
      Tensor l = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
      {
        torch::NoGradGuard no_grad;  // between a forward and its backward
        EXPECT_TRUE(torch::equal(engine.forward([&] { return model->forward(batch.tokens); }), logits));
      }
      engine.backward(l);
      EXPECT_TRUE(engine.step().stepped);
    }
  });
}

TEST(Modules, AbsentParametersSayTheirName) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    for (int stage : {2, 3}) {
      SmallNet model;
      zero::Engine engine(*model, zero::AdamW{}, {.stage = stage}, mesh);
      Batch batch = batch_of(0, 2);
      Tensor l = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
      engine.backward(l);
      engine.step();
      const std::string error = error_of([&] { (void)(model->embedding->weight + 1); });
      EXPECT_NE(error.find("embedding.weight"), std::string::npos) << error;
      EXPECT_NE(error.find("GatherScope"), std::string::npos) << error;
      EXPECT_NO_THROW((void)model->embedding->weight.t().sizes()) << "shapes are always there";
    }
  });
}

TEST(Modules, WritingAParameterInForwardIsRefusedByName) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    SmallNet model;
    zero::Engine engine(*model, zero::AdamW{}, {.stage = 3}, mesh);
    const std::string error = error_of([&] {
      engine.forward([&] {
        torch::NoGradGuard no_grad;
        model->layers[1]->as<BlockImpl>()->up->bias.add_(1);
        return 0;
      });
    });
    EXPECT_NE(error.find("layers.1.up.bias"), std::string::npos) << error;
    EXPECT_NE(error.find("in place"), std::string::npos) << error;
  });
}

TEST(GatherScope, ReadsAndModifies) {
  run_ranks(3, [](const zero::Mesh& mesh) {
    for (int turn = 0; turn <= 5;
         ++turn) {  // stages 0 to 3 in memory of their own, then two in common memory
      const int stage = turn < 4 ? turn : turn - 2;
      torch::manual_seed(4);
      SmallNet model;
      const Tensor before = model->embedding->weight.detach().clone();
      zero::EngineOptions options{.stage = stage, .dtype = torch::kBFloat16};
      options.share_parameters = turn >= 4;
      zero::Engine engine(*model, zero::AdamW{}, options, mesh);
      const int64_t resident = engine.stats().resident_bytes;
      {
        zero::GatherScope scope(engine);
        EXPECT_TRUE(torch::equal(model->embedding->weight.cpu(), before.to(torch::kBFloat16)));
      }
      EXPECT_EQ(engine.stats().resident_bytes, resident);
      {
        const std::vector<std::string> names{"layers.1.up.weight"};
        zero::GatherScope scope(engine, names, zero::Access::Modify);
        torch::NoGradGuard no_grad;
        model->layers[1]->as<BlockImpl>()->up->weight.fill_(0.25).add_(0.25);
        if (turn == 3) {
          EXPECT_NE(error_of([&] { (void)model->embedding->weight.sum(); }), "no error");
        }
      }
      EXPECT_TRUE(torch::equal(engine.full_parameter("layers.1.up.weight"), torch::full({30, 10}, 0.5)));
      {
        zero::GatherScope scope(engine, zero::Access::Modify);
        torch::NoGradGuard no_grad;
        if (mesh.rank() == 1) model->norm->weight.fill_(3);
        scope.broadcast(1);
      }
      EXPECT_TRUE(torch::equal(engine.full_parameter("norm.weight"), torch::full({10}, 3.0F)));
      Batch batch = batch_of(0, 2);
      Tensor l = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
      engine.backward(l);
      EXPECT_TRUE(engine.step().stepped);
    }
  });
}

TEST(GatherScope, GenerationGathersOnce) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    SmallNet model;
    zero::Engine engine(*model, zero::AdamW{}, {.stage = 3}, mesh);
    zero::GatherScope scope(engine);
    const int64_t gathers = engine.stats().all_gathers;
    torch::NoGradGuard no_grad;
    for (int token = 0; token < 5; ++token) {
      engine.forward([&] { return model->forward(batch_of(token, 1).tokens); });
      model->forward(batch_of(token, 1).tokens);  // outside the engine too
    }
    EXPECT_EQ(engine.stats().all_gathers, gathers);
  });
}

TEST(Engine, MisuseIsAClearError) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    SmallNet model;
    EXPECT_NE(error_of([&] { zero::Engine(*model, zero::AdamW{}, {.stage = 7}, mesh); }).find("7"),
              std::string::npos);
    EXPECT_NE(error_of([&] { zero::Engine(*model, zero::AdamW{.lr = -1}, {}, mesh); }).find("lr"),
              std::string::npos);
    zero::EngineOptions groups;
    groups.groups = {{.pattern = "no.such.*"}};
    EXPECT_NE(error_of([&] { zero::Engine(*model, zero::AdamW{}, groups, mesh); }).find("no.such"),
              std::string::npos);
    nn::Linear doubles(3, 3);
    doubles->to(torch::kDouble);
    EXPECT_NE(error_of([&] { zero::Engine(*doubles, zero::AdamW{}, {}, mesh); }).find("fp64"),
              std::string::npos);
    zero::Engine engine(*model, zero::AdamW{}, {}, mesh);
    EXPECT_NE(error_of([&] { engine.backward(torch::ones({})); }).find("NoGradGuard"), std::string::npos);
    EXPECT_NE(error_of([&] { engine.full_parameter("embeding.weight"); }).find("embedding.weight"),
              std::string::npos);
    EXPECT_FALSE(engine.step().stepped);
  });
}

// Without loss scaling small gradients would be lost. What does not train may be fp16, and so may the wire.
TEST(Engine, TrainingInFp16IsRefused) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    const auto refused = [&](nn::Linear& module, const zero::EngineOptions& options) {
      const std::string error = error_of([&] { zero::Engine(*module, zero::AdamW{}, options, mesh); });
      EXPECT_EQ(error.find("unsupported error: "), 0U) << error;
      return error.find("weight") != std::string::npos && error.find("bf16") != std::string::npos;
    };
    nn::Linear whole(3, 3), half(3, 3), frozen(3, 3);
    EXPECT_TRUE(refused(whole, {.dtype = torch::kHalf}));
    half->to(torch::kHalf);
    EXPECT_TRUE(refused(half, {}));
    for (Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    zero::Engine reads(*frozen, zero::AdamW{}, {.dtype = torch::kHalf}, mesh);
    EXPECT_EQ(frozen->weight.scalar_type(), torch::kHalf);
    zero::EngineOptions wire;
    wire.dtype = torch::kBFloat16;  // fp16 of its own is computed in bf16
    wire.communication_dtype = torch::kHalf;
    zero::Engine trains(*half, zero::AdamW{}, wire, mesh);
    trains.backward(trains.forward([&] {
      return half(torch::ones({1, 3}, torch::kBFloat16).to(test_device())).sum();
    }));
    EXPECT_TRUE(trains.step().stepped);
  });
}

TEST(Engine, NonFiniteGradientsSkipTheStep) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    SmallNet model;
    zero::Engine engine(*model, zero::AdamW{}, {.stage = 2}, mesh);
    const Tensor before = engine.full_parameter("norm.weight");
    Batch batch = batch_of(0, 2);
    Tensor l = engine.forward(
        [&] { return model->loss(batch.tokens, batch.targets) * (mesh.rank() == 1 ? INFINITY : 1.0); });
    engine.backward(l);
    const zero::StepResult result = engine.step();
    EXPECT_TRUE(result.skipped());
    EXPECT_FALSE(std::isfinite(result.clip().norm_before));
    EXPECT_TRUE(torch::equal(engine.full_parameter("norm.weight"), before));
    EXPECT_EQ(engine.stats().skipped_steps, 1);
  });
}
}  // namespace

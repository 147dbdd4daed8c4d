// What a suspended forward allows, and what it refuses by name; what absent stages cost.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <set>

#include "support/expect_error.h"
#include "support/named_tensors.h"
#include "support/plain_models.h"
#include "support/ranks.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/lazy.h"
#include "zero/pipeline.h"

namespace {

using namespace zero::testing;
using at::Tensor;
using zero::Mesh;
using zero::Pipeline;
using Middle = std::function<Tensor(const Tensor& x)>;

/// Four layers, with what a test puts before the third one.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(Middle between) : middle(std::move(between)) {
    torch::manual_seed(3);
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("layer_" + std::to_string(i), torch::nn::Linear(6, 6)));
    scale = register_buffer("scale", torch::ones(6));
  }
  Tensor loss(const Tensor& input) {
    Tensor x = torch::tanh(layers[1](torch::tanh(layers[0](input)) * scale));
    x = middle(x);
    return layers[3](torch::tanh(layers[2](x))).square().mean();
  }
  Middle middle;
  std::vector<torch::nn::Linear> layers;
  Tensor scale;
};
TORCH_MODULE(Layers);

RankOptions two_stages() {
  RankOptions options;
  options.mesh.axes = {{"pp", 2}, {"dp", 1}};
  return options;
}

Tensor input_of(int i) { return torch::linspace(-1 - i, 2, 6 * (3 + i)).view({3 + i, 6}); }

constexpr int kMicroBatches = 2;

using Middles = std::map<std::string, Middle>;
using Values = std::map<std::string, std::string>;

/// Parameters after a step, by middle and name.
Values alone(const Middles& middles) {
  return named_of(run_ranks(1, [&](const Mesh& mesh) {
    for (const auto& [title, middle] : middles) {
      Layers net(middle);
      zero::Engine engine(*net, zero::SGD{.lr = 0.1}, {.accumulation_steps = kMicroBatches}, mesh);
      for (int i = 0; i < kMicroBatches; ++i)
        engine.backward(engine.forward([&] { return net->loss(input_of(i)); }));
      engine.step();
      for (const std::string& name : engine.parameter_names())
        hand_back_named(title + ": " + name, engine.full_parameter(name));
    }
  }));
}

Values piped(const Middles& middles, const std::vector<int64_t>& counts) {
  return named_of(run_ranks(
      2,
      [&](const Mesh& mesh) {
        for (const auto& entry : middles) {
          Layers net(entry.second);
          const auto forward = [&](int i) { return net->loss(input_of(i)); };
          const zero::PipelineUnits units{
              .patterns = {{"layer_0.*"}, {"layer_1.*"}, {"layer_2.*"}, {"layer_3.*"}}, .counts = counts};
          Pipeline pipeline(*net, forward, units, zero::SGD{.lr = 0.1}, {}, {.micro_batches = kMicroBatches},
                            mesh);
          pipeline.train(forward);
          pipeline.step();
          for (const std::string& name : pipeline.engine().parameter_names())
            hand_back_named(entry.first + ": " + name, pipeline.engine().full_parameter(name));
        }
      },
      two_stages()));
}

struct Tripled : torch::autograd::Function<Tripled> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return (x * 2 + x).sin();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * (x * 3).cos()};
  }
};

TEST(SuspendedRules, WhatModulesDoBetweenStages) {
  const Middles middles{
      {"nothing", [](const Tensor& x) { return x; }},
      {"a function of one's own", [](const Tensor& x) { return Tripled::apply(x); }},
      {"in place",
       [](const Tensor& x) {
         Tensor y = x.clone();
         y.mul_(2).add_(x);
         return y;
       }},
      {"a slice in place",
       [](const Tensor& x) {
         Tensor y = x * 2;
         y.narrow(1, 0, 2).mul_(3);
         return y;
       }},
      {"zeros of its own",
       [](const Tensor& x) {
         Tensor y = x.new_zeros(x.sizes());
         y.narrow(0, 0, 2).copy_(x.narrow(0, 0, 2));
         return y + x;
       }},
      {"views",
       [](const Tensor& x) {
         return x.t().contiguous().view({2, 3, -1}).permute({2, 0, 1}).flatten(1);
       }},
      {"where and index",
       [](const Tensor& x) {
         return torch::where(x > 0, x, x * 0.5).index_select(0, torch::arange(x.size(0)).flip(0));
       }},
      {"no gradient",
       [](const Tensor& x) {
         Tensor scale;
         {
           const torch::NoGradGuard no_grad;
           scale = x.abs().amax(-1, true).clamp_min(0.1);
         }
         return x / scale;
       }},
      {"several tensors",
       [](const Tensor& x) {
         const auto parts = torch::stack({x, x.cos(), x.sin()}, 0).unbind(0);
         return parts[0] * parts[1] + parts[2];
       }},
      {"control by shapes", [](const Tensor& x) { return x.size(0) > 3 ? x * 2 : x; }},
      {"control by tensors of all",
       [](const Tensor& x) { return torch::arange(5).sum().item<int64_t>() == 10 ? x.sin() : x; }},
  };
  const Values expected = alone(middles);
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{2, 2}, {1, 3}, {3, 1}, {4, 0}, {0, 4}})
    EXPECT_EQ(differences(piped(middles, counts), expected), "") << counts[0];
}

// The tensor that crosses is written, where nobody else has it.
TEST(SuspendedRules, WhatCrossesMayBeWrittenByItsOnlyHolder) {
  struct InPlace : torch::nn::Module {
    InPlace() {
      torch::manual_seed(3);
      first = register_module("first", torch::nn::Linear(6, 6));
      second = register_module("second", torch::nn::Linear(6, 6));
    }
    Tensor loss(const Tensor& input) {
      Tensor x = first(input);
      x += second(input).sin();
      return (x * x).mean();
    }
    torch::nn::Linear first{nullptr}, second{nullptr};
  };
  const auto train = [](int ranks) {
    RankOptions options;
    options.mesh.axes = {{"pp", ranks}, {"dp", 1}};
    return named_of(run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          InPlace net;
          const auto forward = [&](int i) { return net.loss(input_of(i)); };
          Pipeline pipeline(net, forward, {}, zero::SGD{.lr = 0.1}, {}, {.micro_batches = 3}, mesh);
          EXPECT_EQ(pipeline.engine().parameter_names().size(), 4 / ranks);
          pipeline.train(forward);
          pipeline.step();
          for (const std::string& name : pipeline.engine().parameter_names())
            hand_back_named(name, pipeline.engine().full_parameter(name));
        },
        options));
  };
  EXPECT_EQ(differences(train(2), train(1)), "");
}

TEST(SuspendedRules, WhatOnlyValuesTellIsRefusedByName) {
  const std::vector<std::tuple<Middle, zero::ErrorKind, std::string>> refused{
      {[](const Tensor& x) { return x.sum().item<float>() > 0 ? x : -x; }, zero::ErrorKind::Unsupported,
       "aten::item: the forward of a pipeline's module reads values"},
      {[](const Tensor& x) { return x.index({x > 0}).sum() + x; }, zero::ErrorKind::Unsupported,
       "aten::index: the forward"},
      {[](const Tensor& x) { return x * torch::nonzero(x).size(0); }, zero::ErrorKind::Unsupported,
       "aten::nonzero: the forward"},
      {[](const Tensor& x) { return torch::equal(x, x) ? x : x; }, zero::ErrorKind::Unsupported,
       "aten::equal: the forward"},
      {[](const Tensor& x) { return x * x.data_ptr<float>()[0]; }, zero::ErrorKind::Unsupported,
       "a tensor of another stage of a pipeline"},
      {[](const Tensor& x) {
         return torch::zeros({x.size(0), 6}).copy_(x);
       },
       zero::ErrorKind::Unsupported, "make that tensor of the stage's own"},
      {[](const Tensor& x) { return x.data() + x; }, zero::ErrorKind::Unsupported,
       "reads a tensor of another stage that no operator made"},
  };
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        for (const auto& [middle, kind, text] : refused) {
          Layers net(middle);
          std::string found;
          try {
            Pipeline pipeline(
                *net, [&](int i) { return net->loss(input_of(i)); }, {}, zero::SGD{}, {},
                {.micro_batches = 2}, mesh);
          } catch (const std::exception& error) {
            found = error.what();
          }
          EXPECT_NE(found.find(text), std::string::npos) << text << ": " << found;
        }
      },
      two_stages());
}

TEST(SuspendedRules, UnitsAndForwardsThatDoNotFitAreRefused) {
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        Layers net([](const Tensor& x) { return x; });
        const auto forward = [&](int i) { return net->loss(input_of(i)); };
        const auto make = [&](const zero::PipelineUnits& units) {
          return std::make_unique<Pipeline>(*net, forward, units, zero::SGD{}, zero::EngineOptions{},
                                            zero::PipelineOptions{.micro_batches = 2}, mesh);
        };
        EXPECT_ERROR(make({.patterns = {{"layer_0.*", "layer_1.*", "layer_2.*"}}}), Config,
                     "layer_3.weight: no unit of the pipeline has it");
        EXPECT_ERROR(make({.patterns = {{"*"}, {"layer_9.*"}}}), Config,
                     "\"layer_9.*\" matches no parameter");
        EXPECT_ERROR(make({.patterns = {{"layer_3.*"}, {"layer_[0-2].*"}}, .counts = {1, 1}}), Config,
                     "give units in the order in which the forward uses them");
        EXPECT_ERROR(make({.counts = {2, 3}}), Config, "counts of 5 units, expected 4");
        const auto pipeline = make({});
        EXPECT_ERROR(pipeline->train([](int) { return zero::StageTensors{}; },
                                     [](const zero::StageTensors& out, int) { return out[0]; }),
                     Usage, "its stages have no forward");
      },
      two_stages());
  // Another forward on another rank is noticed where its tensors arrive.
  bool is_named = false;
  for (const RankResult& result : collect_ranks(
           2,
           [&](const Mesh& mesh) {
             Layers net([](const Tensor& x) { return x; });
             const auto forward = [&](int i) { return net->loss(input_of(i + mesh.rank())); };
             Pipeline pipeline(*net, forward, {}, zero::SGD{}, {}, {.micro_batches = 2}, mesh);
             pipeline.train(forward);
           },
           two_stages()))
    is_named |= result.error.find("give all ranks of a pipeline the same micro-batches") != std::string::npos;
  EXPECT_TRUE(is_named);
}

TEST(SuspendedRules, AbsentUnitsNeverGetMemory) {
  run_ranks(
      2,
      [](const Mesh& mesh) {
        torch::manual_seed(2);
        const auto net = zero::lazily([] { return std::make_shared<PlainGpt>(); });
        const Tensor tokens = torch::arange(2 * 9).view({2, 9});
        const auto forward = [&](int) { return net->loss(tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8)); };
        Pipeline pipeline(*net, forward, {}, zero::AdamW{}, {.stage = 3}, {.micro_batches = 3}, mesh);
        const Tensor before = pipeline.evaluate(5, forward);
        for (int step = 0; step < 5; ++step) {
          pipeline.train(forward);
          pipeline.step();
        }
        const Tensor after = pipeline.evaluate(5, forward);
        EXPECT_LT(after.mean().item<double>(), before.mean().item<double>());
        const auto names = pipeline.engine().parameter_names();
        const std::set<std::string> held(names.begin(), names.end());
        int absent = 0;
        for (const auto& item : net->named_parameters())
          if (!held.contains(item.key())) {
            EXPECT_TRUE(zero::is_lazy(item.value())) << item.key();
            ++absent;
          }
        EXPECT_GT(absent, 20);
        EXPECT_TRUE(held.contains("wte.weight"));  // the first stage's, and the last one's head
      },
      two_stages());
}

}  // namespace

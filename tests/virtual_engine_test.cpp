// The engine in a world of one on a virtual device.
#include <torch/nn.h>
#include <torch/script.h>

#include <filesystem>
#include <functional>
#include <sstream>

#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "support/virtual_machine.h"
#include "zero/engine.h"
#include "zero/language_model.h"
#include "zero/lazy.h"

namespace zero::virtual_device::testing {
namespace {

/// Losses, and values on the host.
struct EngineResult {
  std::vector<double> losses;
  std::vector<at::Tensor> values;
};

class VirtualEngine : public OnVirtualDevices {
 protected:
  static Mesh mesh_on(c10::Device where) {
    MeshOptions options;
    options.device = where;
    return Mesh::join({}, options);
  }

  static void add_parameters(Engine& engine, EngineResult& result) {
    for (const std::string& name : engine.parameter_names())
      result.values.push_back(engine.full_parameter(name).cpu());
  }

  /// `run` does the same on a CPU and on the device, bit for bit and without a fault.
  void expect_same(const std::function<EngineResult(c10::Device)>& run) {
    const EngineResult host = run(c10::kCPU), found = run(device);
    EXPECT_EQ(host.losses, found.losses);
    EXPECT_NE(host.losses.front(), host.losses.back());
    ASSERT_EQ(host.values.size(), found.values.size());
    for (size_t i = 0; i < host.values.size(); ++i) EXPECT_TRUE(host.values[i].equal(found.values[i])) << i;
    EXPECT_EQ(fault_texts(), std::vector<std::string>{});
  }

  /// A small net with tied weights; `steps` passes of micro-batches.
  static EngineResult train_small_net(c10::Device where, EngineOptions options,
                                      const OptimizerSpec& optimizer, int steps = 3) {
    options.cpu_operators = false;  // those of the CPU's run have another rounding
    torch::manual_seed(1);
    zero::testing::SmallNet net = lazily([] { return zero::testing::SmallNet(); });
    Engine engine(*net, optimizer, options, mesh_on(where));
    EngineResult result;
    for (int micro = 0; micro < steps * options.accumulation_steps; ++micro) {
      const auto tokens = torch::arange(14).mul(micro + 3).remainder(29).view({2, 7}).to(where);
      const auto loss = engine.forward([&] { return net->loss(tokens, tokens.roll(1, 1)); });
      engine.backward(loss);
      engine.step();
      result.losses.push_back(loss.item<double>());
    }
    add_parameters(engine, result);
    return result;
  }
};

TEST_F(VirtualEngine, LanguageModelAtEveryStage) {
  for (const bool is_lazy : {false, true})
    for (int stage = 0; stage <= 3; ++stage)
      for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + (is_lazy ? ", lazy, " : ", ") + c10::toString(dtype));
        expect_same([&](c10::Device where) {
          torch::manual_seed(1);
          const auto make = [] {
            return make_language_model(
                Gpt2Shape{.vocab_size = 53, .context_length = 32, .layers = 2, .width = 32, .heads = 4});
          };
          const auto model = is_lazy ? lazily(make) : make();
          EngineOptions options{.stage = stage, .dtype = dtype};
          options.cpu_operators = false;
          Engine engine(*model, AdamW{.lr = 1e-2}, options, mesh_on(where));
          const auto all = torch::arange(2 * 17).mul(7).remainder(53).view({2, 17}).to(where);
          const auto x = all.slice(1, 0, 16).contiguous(), y = all.slice(1, 1, 17).contiguous();
          EngineResult result;
          for (int step = 0; step < 3; ++step) {
            const auto loss = engine.forward([&] {
              const auto logits = model->forward(x).flatten(0, 1);
              return torch::nll_loss(torch::log_softmax(logits, 1, torch::kFloat), y.flatten());
            });
            engine.backward(loss);
            engine.step();
            result.losses.push_back(loss.item<double>());
          }
          add_parameters(engine, result);
          return result;
        });
      }
}

TEST_F(VirtualEngine, OptionsAndOptimizers) {
  const auto expect = [&](const char* what, const EngineOptions& options, const OptimizerSpec& optimizer) {
    SCOPED_TRACE(what);
    expect_same([&](c10::Device where) { return train_small_net(where, options, optimizer); });
  };
  for (int stage = 0; stage <= 3; ++stage) {
    EngineOptions options{.stage = stage, .dtype = torch::kBFloat16};
    options.accumulation_steps = 2;
    options.gradient_clipping = 0.5;
    expect("accumulation and clipping", options, AdamW{.lr = 1e-2});
    options.split_master = false;
    options.communication_dtype = torch::kFloat;
    options.group_numel = 100;
    expect("plain masters, small groups", options, SGD{.lr = 1e-1, .momentum = 0.9});
  }
  EngineOptions options{.stage = 3};
  options.budget_bytes = 0;
  options.overlap = false;
  expect("one unit at a time", options, Adam{.lr = 1e-2});
}

TEST_F(VirtualEngine, BuffersAndConvolutions) {
  for (const int stage : {0, 3})
    expect_same([&](c10::Device where) {
      namespace nn = torch::nn;
      torch::manual_seed(1);
      nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
                         nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(8, 4));
      Engine engine(*net, AdamW{.lr = 1e-2}, {.stage = stage}, mesh_on(where));
      const auto x = torch::arange(2 * 3 * 64, torch::kFloat).sin().view({2, 3, 8, 8}).to(where);
      EngineResult result;
      for (int step = 0; step < 3; ++step) {
        const auto loss = engine.forward([&] { return net->forward(x).square().mean(); });
        engine.backward(loss);
        engine.step();
        result.losses.push_back(loss.item<double>());
      }
      add_parameters(engine, result);
      for (const auto& buffer : net->buffers()) result.values.push_back(buffer.cpu());
      return result;
    });
}

TEST_F(VirtualEngine, TorchScript) {
  torch::jit::Module module("m");
  torch::manual_seed(1);
  module.register_parameter("w", torch::randn({6, 6}).set_requires_grad(true), false);
  module.define(
      "def forward(self, x):\n  for i in range(2):\n    x = torch.relu(torch.matmul(x, self.w)) * 2 + "
      "torch.sigmoid(x)\n  return x\n");
  std::stringstream file;
  module.save(file);
  expect_same([&](c10::Device where) {
    file.clear();
    file.seekg(0);
    torch::jit::Module loaded = torch::jit::load(file);
    Engine engine(loaded, Adam{.lr = 1e-2}, {.stage = 3}, mesh_on(where));
    const auto x = torch::arange(18, torch::kFloat).cos().view({3, 6}).to(where);
    EngineResult result;
    for (int step = 0; step < 4; ++step) {  // enough for the profiling executor to optimise
      const auto loss = engine.forward([&] { return loaded.forward({x}).toTensor().square().mean(); });
      engine.backward(loss);
      engine.step();
      result.losses.push_back(loss.item<double>());
    }
    add_parameters(engine, result);
    return result;
  });
}

TEST_F(VirtualEngine, CheckpointsGoFromACpuToTheDeviceAndBack) {
  zero::testing::TemporaryDirectory directory;
  expect_same([&](c10::Device where) {
    torch::manual_seed(1);
    EngineOptions options{.stage = 3};
    options.cpu_operators = false;
    const auto train = [&](c10::Device at, int steps, bool loads) {
      zero::testing::SmallNet net;
      Engine engine(*net, AdamW{.lr = 1e-2}, options, mesh_on(at));
      if (loads) engine.load(directory.path() / "step-00000002");
      EngineResult result;
      for (int step = 0; step < steps; ++step) {
        const auto tokens = torch::arange(14).mul(step + 3).remainder(29).view({2, 7}).to(at);
        const auto loss = engine.forward([&] { return net->loss(tokens, tokens.roll(1, 1)); });
        engine.backward(loss);
        engine.step();
        result.losses.push_back(loss.item<double>());
      }
      if (!loads) engine.save(directory.path());
      add_parameters(engine, result);
      return result;
    };
    std::filesystem::remove_all(directory.path() / "step-00000002");
    train(where, 2, false);
    return train(where == c10::Device(c10::kCPU) ? device : c10::Device(c10::kCPU), 2, true);
  });
}

}  // namespace
}  // namespace zero::virtual_device::testing

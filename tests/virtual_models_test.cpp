// Whole models on a virtual device: losses and parameters are the CPU's bit for bit, and nothing is at fault.
#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>

#include "support/virtual_machine.h"
#include "zero/gpt2_shape.h"
#include "zero/gpt_neox_shape.h"
#include "zero/language_model.h"
#include "zero/llama_shape.h"

namespace zero::virtual_device::testing {
namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

/// A module, and its loss on a batch that was moved to where the module is.
struct Task {
  std::shared_ptr<nn::Module> module;
  std::function<Tensor(const std::vector<Tensor>& batch)> loss;
};

struct Result {
  std::vector<double> losses;
  std::vector<Tensor> values;  // parameters and buffers, on the host
};

using MakeTask = std::function<Task()>;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

std::unique_ptr<torch::optim::Optimizer> adamw(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(1e-2));
}

std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(1e-3));
}

class VirtualModels : public OnVirtualDevices {
 protected:
  Result train(c10::Device where, c10::ScalarType dtype, const MakeTask& make,
               const MakeOptimizer& optimizer_of, const std::vector<Tensor>& batch) {
    torch::manual_seed(1);
    const Task task = make();
    task.module->to(dtype);
    task.module->to(where);
    const auto optimizer = optimizer_of(task.module->parameters());
    std::vector<Tensor> there;
    for (const Tensor& tensor : batch)
      there.push_back((tensor.is_floating_point() ? tensor.to(dtype) : tensor).to(where));
    torch::manual_seed(2);
    Result result;
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      const Tensor loss = task.loss(there);
      loss.backward();
      optimizer->step();
      result.losses.push_back(loss.item<double>());
    }
    for (const Tensor& tensor : task.module->parameters()) result.values.push_back(tensor.detach().cpu());
    for (const Tensor& tensor : task.module->buffers()) result.values.push_back(tensor.detach().cpu());
    return result;
  }

  void expect_same(const std::string& what, const MakeTask& make, const std::vector<Tensor>& batch) {
    for (const auto dtype : {torch::kFloat, torch::kBFloat16})
      for (const auto& optimizer : {MakeOptimizer(adamw), MakeOptimizer(sgd)}) {
        SCOPED_TRACE(what + ", " + c10::toString(dtype));
        const Result host = train(c10::kCPU, dtype, make, optimizer, batch);
        const Result found = train(device, dtype, make, optimizer, batch);
        EXPECT_EQ(host.losses, found.losses);
        if (dtype == torch::kFloat) {
          EXPECT_NE(host.losses.front(), host.losses.back());
        }
        ASSERT_EQ(host.values.size(), found.values.size());
        size_t different = 0;
        for (size_t i = 0; i < host.values.size(); ++i)
          different += host.values[i].equal(found.values[i]) ? 0 : 1;
        EXPECT_EQ(different, 0) << "of " << host.values.size() << " parameters and buffers";
        EXPECT_EQ(fault_texts(), std::vector<std::string>{});
      }
  }

  static std::vector<Tensor> tokens(int64_t vocabulary) {
    const Tensor all = torch::arange(2 * 17).mul(7).remainder(vocabulary).view({2, 17});
    return {all.slice(1, 0, 16).contiguous(), all.slice(1, 1, 17).contiguous()};
  }

  static Tensor wave(torch::IntArrayRef sizes) {
    return torch::arange(c10::multiply_integers(sizes), torch::kFloat).sin().view(sizes);
  }
};

// The loss by operators: LanguageModel::loss() takes another way on a CPU, with other rounding.
MakeTask language_task(const ModelShape& shape) {
  return [shape] {
    const auto model = make_language_model(shape);
    return Task{model, [model](const std::vector<Tensor>& batch) {
                  const Tensor logits = model->forward(batch[0]).flatten(0, 1);
                  return torch::nll_loss(torch::log_softmax(logits, /*dim=*/1, torch::kFloat),
                                         batch[1].flatten());
                }};
  };
}

TEST_F(VirtualModels, Gpt2) {
  expect_same(
      "GPT-2",
      language_task(Gpt2Shape{
          .vocab_size = 53, .context_length = 32, .layers = 2, .width = 32, .heads = 4, .dropout = 0.1}),
      tokens(53));
}

TEST_F(VirtualModels, Llama) {
  LlamaShape shape;
  shape.vocab_size = 53, shape.context_length = 32, shape.width = 32, shape.layers = 2, shape.heads = 4;
  shape.kv_heads = 2, shape.head_width = 8, shape.mlp_width = 48;
  expect_same("Llama", language_task(shape), tokens(53));
}

TEST_F(VirtualModels, GptNeox) {
  GptNeoxShape shape;
  shape.vocab_size = 53, shape.context_length = 32, shape.width = 32, shape.layers = 2, shape.heads = 4;
  shape.mlp_width = 64;
  expect_same("GPT-NeoX", language_task(shape), tokens(53));
}

/// A sequence and the mean square of what it gives.
MakeTask sequential_task(const std::function<nn::Sequential()>& make) {
  return [make] {
    nn::Sequential net = make();
    return Task{net.ptr(), [net](const std::vector<Tensor>& batch) mutable {
                  return net->forward(batch[0]).square().mean();
                }};
  };
}

TEST_F(VirtualModels, DropoutAndLayerNorm) {
  expect_same("dropout", sequential_task([] {
                return nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::Dropout(0.3),
                                      nn::LayerNorm(nn::LayerNormOptions({32})), nn::Linear(32, 4));
              }),
              {wave({8, 16})});
}

TEST_F(VirtualModels, ConvolutionAndBatchNorm) {
  expect_same("convolution", sequential_task([] {
                return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8),
                                      nn::ReLU(), nn::MaxPool2d(2),
                                      nn::Conv2d(nn::Conv2dOptions(8, 8, 3).groups(2)), nn::GroupNorm(2, 8),
                                      nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(8, 4));
              }),
              {wave({2, 3, 12, 12})});
}

template <class Layer, class Options>
MakeTask recurrent_task(const Options& options) {
  struct Net : nn::Module {
    explicit Net(const Options& options) { layer = register_module("layer", Layer(options)); }
    Layer layer{nullptr};
  };
  return [options] {
    auto net = std::make_shared<Net>(options);
    return Task{net, [net](const std::vector<Tensor>& batch) {
                  return std::get<0>(net->layer->forward(batch[0])).square().mean();
                }};
  };
}

TEST_F(VirtualModels, RecurrentLayers) {
  const std::vector<Tensor> batch{wave({5, 3, 8})};
  expect_same("LSTM", recurrent_task<nn::LSTM>(nn::LSTMOptions(8, 6).num_layers(2).dropout(0.2)), batch);
  expect_same("LSTM in both directions",
              recurrent_task<nn::LSTM>(nn::LSTMOptions(8, 6).bidirectional(true).batch_first(true)), batch);
  expect_same("LSTM with projections", recurrent_task<nn::LSTM>(nn::LSTMOptions(8, 6).proj_size(4)), batch);
  expect_same("GRU", recurrent_task<nn::GRU>(nn::GRUOptions(8, 6).num_layers(2).bidirectional(true)), batch);
  expect_same("RNN", recurrent_task<nn::RNN>(nn::RNNOptions(8, 6).num_layers(2).nonlinearity(torch::kReLU)),
              batch);
}

TEST_F(VirtualModels, RecurrentCells) {
  struct Net : nn::Module {
    nn::LSTMCell lstm{register_module("lstm", nn::LSTMCell(8, 6))};
    nn::GRUCell gru{register_module("gru", nn::GRUCell(6, 6))};
  };
  expect_same("cells",
              [] {
                auto net = std::make_shared<Net>();
                return Task{net, [net](const std::vector<Tensor>& batch) {
                              const auto [hidden, cell] = net->lstm->forward(batch[0]);
                              return net->gru->forward(hidden, cell).square().mean();
                            }};
              },
              {wave({3, 8})});
}

TEST_F(VirtualModels, EmbeddingMasksAndCrossEntropy) {
  struct Net : nn::Module {
    nn::Embedding table{register_module("table", nn::Embedding(23, 16))};
    nn::MultiheadAttention attention{register_module("attention", nn::MultiheadAttention(16, 4))};
    nn::Linear head{register_module("head", nn::Linear(16, 23))};
  };
  expect_same(
      "masks",
      [] {
        auto net = std::make_shared<Net>();
        return Task{net, [net](const std::vector<Tensor>& batch) {
                      const Tensor x = net->table(batch[0]).transpose(0, 1);
                      const Tensor y = std::get<0>(net->attention->forward(x, x, x)).transpose(0, 1);
                      const Tensor mask = batch[0] % 3 != 0;
                      return F::cross_entropy(net->head(y.index({mask})), batch[1].index({mask}));
                    }};
      },
      tokens(23));
}

TEST_F(VirtualModels, Attention) {
  struct Net : nn::Module {
    nn::Linear in{register_module("in", nn::Linear(16, 48))}, out{register_module("out", nn::Linear(16, 16))};
  };
  for (const bool is_causal : {true, false})
    expect_same(
        "attention",
        [is_causal] {
          auto net = std::make_shared<Net>();
          return Task{
              net, [net, is_causal](const std::vector<Tensor>& batch) {
                const auto parts = net->in(batch[0]).view({2, 8, 3, 4, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
                const Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {},
                                                                  is_causal ? 0.0 : 0.1, is_causal);
                return net->out(y.transpose(1, 2).reshape({2, 8, 16})).square().mean();
              }};
        },
        {wave({2, 8, 16})});
}

TEST_F(VirtualModels, StepTakesTheSameTimeEveryTime) {
  const auto task = language_task(Gpt2Shape{
      .vocab_size = 53, .context_length = 32, .layers = 2, .width = 32, .heads = 4, .dropout = 0.1});
  const auto time = [&] {
    devices.synchronize();
    const double begin = devices.simulated_ns();
    train(device, torch::kFloat, task, adamw, tokens(53));
    return devices.simulated_ns() - begin;
  };
  const double first = time();
  EXPECT_GT(first, 0);
  EXPECT_EQ(first, time());
}

}  // namespace
}  // namespace zero::virtual_device::testing

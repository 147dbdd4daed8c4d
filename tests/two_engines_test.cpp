// Two engines in one process, of which one trains through the other's module: a GAN, as in plain LibTorch.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "support/ranks.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kGanSteps = 6;
constexpr int64_t kGanSamples = 6;

nn::Sequential perceptron(int64_t in, int64_t out) {
  return nn::Sequential(nn::Linear(in, 16), nn::Tanh(), nn::Linear(16, out));
}

struct Gan {
  nn::Sequential generator = perceptron(3, 5), critic = perceptron(5, 1);
};

Gan seeded_gan() {
  torch::manual_seed(11);
  return {};
}

Tensor drawn(int seed, int64_t width, int part, int parts) {
  auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return torch::randn({kGanSamples, width}, random, torch::kFloat)
      .narrow(0, part * kGanSamples / parts, kGanSamples / parts);
}

Tensor critic_loss(Gan& gan, int step, int part, int parts) {
  const Tensor real = drawn(2 * step, 5, part, parts), noise = drawn(2 * step + 1, 3, part, parts);
  Tensor fake;
  {
    torch::NoGradGuard no_grad;
    fake = gan.generator->forward(noise);
  }
  return (torch::softplus(-gan.critic->forward(real)) + torch::softplus(gan.critic->forward(fake))).mean();
}

Tensor generator_loss(Gan& gan, int step, int part, int parts) {
  const Tensor fake = gan.generator->forward(drawn(2 * step + 1, 3, part, parts));
  return torch::softplus(-gan.critic->forward(fake)).mean();
}

// Plain LibTorch, of all samples.
std::vector<Tensor> trained_plainly() {
  Gan gan = seeded_gan();
  torch::optim::Adam of_generator(gan.generator->parameters(), 1e-2),
      of_critic(gan.critic->parameters(), 1e-2);
  for (int step = 0; step < kGanSteps; ++step) {
    of_critic.zero_grad();
    critic_loss(gan, step, 0, 1).backward();
    of_critic.step();
    of_generator.zero_grad();
    generator_loss(gan, step, 0, 1).backward();
    of_generator.step();
  }
  std::vector<Tensor> values;
  for (auto& module : {gan.generator, gan.critic})
    for (const Tensor& parameter : module->parameters()) values.push_back(parameter.detach());
  return values;
}

TEST(TwoEngines, TrainAGanAsPlainLibTorchDoes) {
  for (const int ranks : {1, 2})
    for (int turn = 0; turn < 6; ++turn)
      run_ranks(ranks, [&](const zero::Mesh& mesh) {
        const std::vector<Tensor> expected = trained_plainly();
        Gan gan = seeded_gan();
        zero::EngineOptions options{.stage = std::min(turn, 3)};
        options.share_parameters = turn < 4;
        if (turn == 5) options.budget_bytes = 0;
        zero::Engine generator(*gan.generator, zero::Adam{.lr = 1e-2}, options, mesh);
        zero::Engine critic(*gan.critic, zero::Adam{.lr = 1e-2}, options, mesh);
        for (int step = 0; step < kGanSteps; ++step) {
          Tensor loss = critic.forward([&] { return critic_loss(gan, step, mesh.rank(), ranks); });
          critic.backward(loss);
          critic.step();
          loss = generator.forward([&] { return generator_loss(gan, step, mesh.rank(), ranks); });
          generator.backward(loss);
          generator.step();
          for (const Tensor& parameter : gan.critic->parameters()) EXPECT_FALSE(parameter.grad().defined());
        }
        size_t index = 0;
        for (zero::Engine* engine : {&generator, &critic})
          for (const std::string& name : engine->parameter_names())
            EXPECT_TRUE(torch::allclose(engine->full_parameter(name), expected[index++], 1e-5, 1e-6))
                << name << ", turn " << turn << ", " << ranks << " ranks";
        EXPECT_EQ(index, expected.size());
      });
}

TEST(TwoEngines, APlainBackwardIsRefusedByName) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    nn::Sequential net = perceptron(3, 2);
    zero::Engine engine(*net, zero::Adam{}, {.stage = 1}, mesh);
    const Tensor input = torch::ones({2, 3});
    const Tensor loss = engine.forward([&] { return net->forward(input).sum(); });
    try {
      loss.backward();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("engine.backward"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("2.bias"), std::string::npos) << error.what();
    }
    EXPECT_FALSE(engine.step().stepped);
  });
}
}  // namespace

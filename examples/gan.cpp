// Two engines in one loop: a generator and a critic. The generator's loss runs through the critic's module;
// each engine keeps its own gradients only. Run on two ranks: zero launch --ranks 2 -- example_gan
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

torch::nn::Sequential perceptron(int in, int out) {
  return torch::nn::Sequential(torch::nn::Linear(in, 64), torch::nn::LeakyReLU(), torch::nn::Linear(64, 64),
                               torch::nn::LeakyReLU(), torch::nn::Linear(64, out));
}

// Points near a circle.
torch::Tensor real_points(int count) {
  auto angle = torch::rand({count, 1}) * 2 * M_PI;
  return torch::cat({angle.cos(), angle.sin()}, 1) * 2 + 0.05 * torch::randn({count, 2});
}

int main() try {
  auto mesh = zero::Mesh::from_environment();
  torch::manual_seed(1);
  auto generator = perceptron(4, 2), critic = perceptron(2, 1);
  zero::Engine of_generator(*generator, zero::Adam{.lr = 1e-3, .beta1 = 0.5}, {.stage = 3}, mesh);
  zero::Engine of_critic(*critic, zero::Adam{.lr = 1e-3, .beta1 = 0.5}, {.stage = 3}, mesh);

  torch::manual_seed(2 + mesh.rank());
  for (int step = 0; step < 400; ++step) {
    // The critic tells real points from made ones, which carry no gradient to the generator here.
    torch::Tensor made;
    {
      torch::NoGradGuard no_grad;
      made = of_generator.forward([&] { return generator->forward(torch::randn({64, 4})); });
    }
    auto critic_loss = of_critic.forward([&] {
      return (torch::softplus(-critic->forward(real_points(64))) + torch::softplus(critic->forward(made)))
          .mean();
    });
    of_critic.backward(critic_loss);
    of_critic.step();

    // The generator learns what the critic takes for real: both modules run, one engine goes backward.
    auto generator_loss = of_generator.forward([&] {
      auto points = generator->forward(torch::randn({64, 4}));
      return of_critic.forward([&] { return torch::softplus(-critic->forward(points)).mean(); });
    });
    of_generator.backward(generator_loss);
    of_generator.step();
    of_critic.abandon_pass();  // its forward above is no part of a step of its own
    if (mesh.rank() == 0 && step % 100 == 99)
      std::printf("step %d critic %.3f generator %.3f\n", step + 1, critic_loss.item<double>(),
                  generator_loss.item<double>());
  }

  torch::NoGradGuard no_grad;
  auto points = of_generator.forward([&] { return generator->forward(torch::randn({512, 4})); });
  const double radius = points.norm(2, 1).mean().item<double>();
  if (mesh.rank() == 0) std::printf("mean distance from the middle %.2f, of real points 2.00\n", radius);
  if (!(radius > 1.2 && radius < 2.8)) throw std::runtime_error("the generator did not learn");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

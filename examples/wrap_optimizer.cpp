// Keep your loop, wrap your optimizer: ZeRO-1. Run on two ranks: zero launch --ranks 2 --
// example_wrap_optimizer
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

int main() try {
  auto mesh = zero::Mesh::from_environment();
  torch::nn::Sequential model(torch::nn::Linear(16, 128), torch::nn::Tanh(), torch::nn::Linear(128, 1));
  // Any torch::optim optimizer, or one of ours: zero::AdamW{.lr = 1e-3}.
  zero::TorchOptimizer adagrad{
      [](std::vector<torch::optim::OptimizerParamGroup> groups) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<torch::optim::Adagrad>(std::move(groups), torch::optim::AdagradOptions(0.05));
      }};
  zero::ZeroRedundancyOptimizer optimizer(model->parameters(), adagrad, {.gradient_clipping = 1.0}, mesh);

  torch::manual_seed(mesh.rank());
  for (int step = 0; step < 200; ++step) {
    auto x = torch::randn({64, 16});
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model->forward(x), x.prod(1, true).tanh());
    loss.backward();
    optimizer.step();
    if (mesh.rank() == 0 && step % 50 == 49)
      std::printf("step %d loss %.4f\n", step + 1, loss.item<double>());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

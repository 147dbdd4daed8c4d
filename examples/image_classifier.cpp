// A residual network with batch norms under ZeRO-2: buffers stay each rank's own until they are averaged for
// use, parameters and states are sharded. Run on two ranks: zero launch --ranks 2 -- example_image_classifier
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

namespace nn = torch::nn;

nn::Conv2d convolution(int from, int to, int stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(int from, int to, int stride) {
    path = register_module("path", nn::Sequential(convolution(from, to, stride), nn::BatchNorm2d(to),
                                                  nn::ReLU(), convolution(to, to), nn::BatchNorm2d(to)));
    shortcut = register_module(
        "shortcut",
        nn::Sequential(nn::Conv2d(nn::Conv2dOptions(from, to, 1).stride(stride)), nn::BatchNorm2d(to)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(path->forward(x) + shortcut->forward(x));
  }
  nn::Sequential path{nullptr}, shortcut{nullptr};
};
TORCH_MODULE(Block);

nn::Sequential resnet(int classes) {
  return nn::Sequential(convolution(1, 8), nn::BatchNorm2d(8), nn::ReLU(), Block(8, 16, 2), Block(16, 32, 2),
                        nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(32, classes));
}

// Noisy stripes, whose direction is the class.
std::pair<torch::Tensor, torch::Tensor> images(int count, int classes) {
  auto labels = torch::randint(classes, {count});
  auto angle = labels.to(torch::kFloat).view({-1, 1, 1, 1}) * (M_PI / classes);
  auto x = torch::arange(16.0).view({1, 1, 1, 16}), y = torch::arange(16.0).view({1, 1, 16, 1});
  auto phase = torch::rand({count, 1, 1, 1}) * 2 * M_PI;
  return {torch::sin(x * angle.cos() + y * angle.sin() + phase) + 0.5 * torch::randn({count, 1, 16, 16}),
          labels};
}

int main() try {
  constexpr int kClasses = 4;
  auto mesh = zero::Mesh::from_environment();
  torch::manual_seed(1);
  auto model = zero::lazily([] { return resnet(kClasses); });
  zero::Engine engine(*model, zero::SGD{.lr = 0.05, .momentum = 0.9}, {.stage = 2}, mesh);

  torch::manual_seed(2 + mesh.rank());
  for (int step = 0; step < 60; ++step) {
    auto [x, labels] = images(32, kClasses);
    auto loss = engine.forward([&] { return torch::cross_entropy_loss(model->forward(x), labels); });
    engine.backward(loss);
    engine.step();
    if (mesh.rank() == 0 && step % 20 == 19)
      std::printf("step %d loss %.4f\n", step + 1, loss.item<double>());
  }

  // Every rank's running means saw its own images. Evaluation takes the mean of all.
  for (auto& buffer : model->buffers())
    if (buffer.is_floating_point()) {
      mesh.world().all_reduce(buffer, zero::Group::Reduce::Sum, "running statistics").wait();
      buffer.div_(mesh.size());
    }
  torch::NoGradGuard no_grad;
  model->eval();
  torch::manual_seed(9);
  auto [x, labels] = images(256, kClasses);
  auto logits = engine.forward([&] { return model->forward(x); });
  const double accuracy = logits.argmax(1).eq(labels).to(torch::kFloat).mean().item<double>();
  if (mesh.rank() == 0) std::printf("accuracy on new images %.1f %%\n", 100 * accuracy);
  if (accuracy < 0.9) throw std::runtime_error("the classifier did not learn");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

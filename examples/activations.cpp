// Activations on a disk: what operators save for backward is written behind forward and read ahead of
// backward, through little memory and with the same bits. Run on two ranks: zero launch --ranks 2 --
// example_activations
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

constexpr int kLayers = 8, kWidth = 256;

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int layer = 0; layer < kLayers; ++layer) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::GELU());
  }
  return model;
}

double train(const zero::Mesh& mesh, const zero::ActivationStore* store) {
  auto model = make_model();
  zero::Engine engine(*model, zero::AdamW{.lr = 1e-3}, {.stage = 3}, mesh);
  torch::manual_seed(mesh.rank());
  double last = 0;
  for (int step = 0; step < 5; ++step) {
    auto x = torch::randn({512, kWidth});
    auto loss = engine.forward([&] {
      std::optional<zero::ActivationStore::Scope> scope;
      if (store != nullptr) scope.emplace(*store);  // all that operators save in here
      return torch::mse_loss(model->forward(x), x.flip(1));
    });
    engine.backward(loss);
    engine.step();
    last = loss.item<double>();
  }
  return last;
}

int main() try {
  auto mesh = zero::Mesh::from_environment();
  const double in_memory = train(mesh, nullptr);

  // Each rank has a file in that directory, which has no name there. On a device Tier::Host is the faster
  // choice.
  zero::ActivationStore store({.tier = zero::Tier::Disk, .path = ".", .buffer_bytes = 1 << 20});
  const double on_disk = train(mesh, &store);
  if (in_memory != on_disk) throw std::runtime_error("the losses differ");

  const zero::ActivationStoreStats stats = store.stats();
  if (mesh.rank() == 0)
    std::printf("the same loss %.6f; %s: at most %lld KiB on disk, %lld KiB written, %lld KiB read\n",
                on_disk, stats.transport.c_str(), static_cast<long long>(stats.peak_stored_bytes >> 10),
                static_cast<long long>(stats.written_bytes >> 10),
                static_cast<long long>(stats.read_bytes >> 10));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

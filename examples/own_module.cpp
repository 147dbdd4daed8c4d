// Your own module under ZeRO-3. Run on two ranks: zero launch --ranks 2 -- example_own_module
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    layers = register_module("layers", torch::nn::Sequential());
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::Linear(64, 64));
      layers->push_back(torch::nn::GELU());
    }
    head = register_module("head", torch::nn::Linear(64, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(layers->forward(x)); }
  torch::nn::Sequential layers{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Mlp);

int main() try {
  auto mesh = zero::Mesh::from_environment();  // torchrun, mpirun, srun, `zero launch`, or alone
  torch::manual_seed(1);
  auto model = zero::lazily([] { return Mlp(); });  // parameters are born sharded
  zero::Engine engine(*model, zero::AdamW{.lr = 3e-3}, {.stage = 3, .gradient_clipping = 1.0}, mesh);

  torch::manual_seed(2 + mesh.rank());  // each rank has its own data
  for (int step = 0; step < 200; ++step) {
    auto x = torch::randn({32, 64});
    auto y = x.sum(1, true).sin();
    auto loss = engine.forward([&] { return torch::mse_loss(model->forward(x), y); });
    engine.backward(loss);
    auto result = engine.step();
    if (mesh.rank() == 0 && step % 50 == 49)
      std::printf("step %d loss %.4f norm %.3f\n", step + 1, loss.item<double>(), result.clip().norm_before);
  }
  engine.save("runs/own_module");
  if (mesh.rank() == 0)
    std::printf("each of %d ranks held %lld of %lld parameter bytes\n", mesh.size(),
                static_cast<long long>(engine.plan().rank.parameter_bytes),
                static_cast<long long>(engine.plan().rank.parameter_bytes * mesh.size()));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

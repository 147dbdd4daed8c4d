// bf16 parameters without masters, but for the norms, which stay fp32. Run on two ranks: zero launch --ranks
// 2
// -- example_precision
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = x + torch::gelu(layer->as<torch::nn::Linear>()->forward(norm(x)));
    return head(x);
  }
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})))};
  torch::nn::ModuleList layers{
      register_module("layers", torch::nn::ModuleList(torch::nn::Linear(32, 32), torch::nn::Linear(32, 32)))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(32, 1))};
};
TORCH_MODULE(Net);

int main() try {
  auto mesh = zero::Mesh::from_environment();
  Net model;
  zero::EngineOptions options{.stage = 2, .dtype = torch::kBFloat16};
  options.stochastic_rounding = true;    // an update is rounded up or down at random, exact in the mean
  options.fp32_parameters = {"norm.*"};  // operators that read these compute in fp32
  options.groups = {{.pattern = "*.bias", .weight_decay = 0}};
  zero::Engine engine(*model, zero::AdamW{.lr = 3e-3}, options, mesh);
  if (mesh.rank() == 0) std::fputs(zero::to_text(engine.parameter_summary()).c_str(), stdout);

  torch::manual_seed(mesh.rank());
  for (int step = 0; step < 200; ++step) {
    auto x = torch::randn({64, 32});
    auto loss = engine.forward([&] {
      auto y = model->forward(x.to(torch::kBFloat16));
      return torch::mse_loss(y.to(torch::kFloat), x.narrow(1, 0, 4).sum(1, true).tanh());
    });
    engine.backward(loss);
    engine.step();
    if (mesh.rank() == 0 && step % 50 == 49)
      std::printf("step %d loss %.4f\n", step + 1, loss.item<double>());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

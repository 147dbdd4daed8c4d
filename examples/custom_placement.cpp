// A placement of your own: the states of each layer in memory or on disk, as you say, whatever the rest does.
// The results are the same bits. Run on two ranks: zero launch --ranks 2 -- example_custom_placement
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

struct StackImpl : torch::nn::Module {
  StackImpl() {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(256, 256));
    head = register_module("head", torch::nn::Linear(256, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = x + torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return head(x);
  }
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Stack);

std::vector<torch::Tensor> train(const zero::Mesh& mesh, const zero::EngineOptions& options) {
  torch::manual_seed(1);
  auto model = zero::lazily([] { return Stack(); });
  zero::Engine engine(*model, zero::AdamW{.lr = 1e-3}, options, mesh);
  if (mesh.rank() == 0) {
    for (const auto& unit : engine.plan().units)
      std::printf("  %-10s %7lld elements  master %-6s moments %s\n", unit.name.c_str(),
                  static_cast<long long>(unit.numel), std::string(to_string(unit.tiers.master)).c_str(),
                  std::string(to_string(unit.tiers.optimizer)).c_str());
    for (const zero::Tier tier : zero::kTiers)
      std::printf("  a rank's bytes, %s: %lld\n", std::string(to_string(tier)).c_str(),
                  static_cast<long long>(engine.plan().rank.tier_bytes[static_cast<size_t>(tier)]));
  }
  torch::manual_seed(2 + mesh.rank());
  for (int step = 0; step < 10; ++step) {
    auto x = torch::randn({16, 256}).to(torch::kBFloat16);
    auto loss = engine.forward([&] { return torch::mse_loss(model->forward(x), x.mean(1, true)); });
    engine.backward(loss);
    engine.step();
  }
  std::vector<torch::Tensor> values;
  for (const std::string& name : engine.parameter_names()) values.push_back(engine.full_parameter(name));
  return values;
}

int main() try {
  auto mesh = zero::Mesh::from_environment();
  zero::EngineOptions options{.stage = 3, .dtype = torch::kBFloat16};
  if (mesh.rank() == 0) std::printf("all in memory\n");
  const auto in_memory = train(mesh, options);

  // Layers 2 to 5 keep masters and moments on disk; the first two layers and the head stay.
  for (int i = 2; i < 6; ++i)
    options.unit_tiers["layers." + std::to_string(i)] = {.master = zero::Tier::Disk,
                                                         .optimizer = zero::Tier::Disk};
  options.offload.path = ".";
  options.offload.piece_numel = 1 << 14;
  if (mesh.rank() == 0) std::printf("as placed\n");
  const auto placed = train(mesh, options);
  for (size_t i = 0; i < placed.size(); ++i)
    if (!torch::equal(in_memory[i], placed[i])) throw std::runtime_error("the values differ");
  if (mesh.rank() == 0) std::printf("the same values\n");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

// Optimizer states on a disk: a model trains with its moments and masters in files, through a few buffers,
// and ends with the bits of a run in memory. Run on two ranks: zero launch --ranks 2 -- example_offload
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(64, 512), torch::nn::Tanh(), torch::nn::Linear(512, 512),
                               torch::nn::Tanh(), torch::nn::Linear(512, 1));
}

std::vector<torch::Tensor> train(const zero::Mesh& mesh, const zero::EngineOptions& options) {
  auto model = make_model();
  zero::Engine engine(*model, zero::AdamW{.lr = 1e-3}, options, mesh);
  torch::manual_seed(mesh.rank());
  for (int step = 0; step < 20; ++step) {
    auto x = torch::randn({32, 64}).to(torch::kBFloat16);
    auto loss = engine.forward([&] { return torch::mse_loss(model->forward(x), x.sum(1, true).tanh()); });
    engine.backward(loss);
    engine.step();
  }
  const zero::EngineStats stats = engine.stats();
  const zero::RankPlan& plan = engine.plan().rank;
  if (mesh.rank() == 0 && !stats.disk.transport.empty())
    std::printf("%s: %lld KiB of states on disk, %lld KiB of buffers, %lld KiB written\n",
                stats.disk.transport.c_str(),
                static_cast<long long>(plan.tier_bytes[static_cast<size_t>(zero::Tier::Disk)] >> 10),
                static_cast<long long>(stats.disk.ring_bytes >> 10),
                static_cast<long long>(stats.disk.written_bytes >> 10));
  std::vector<torch::Tensor> values;
  for (const std::string& name : engine.parameter_names()) values.push_back(engine.full_parameter(name));
  return values;
}

int main() try {
  auto mesh = zero::Mesh::from_environment();
  zero::EngineOptions options{.stage = 3, .dtype = torch::kBFloat16, .gradient_clipping = 1.0};
  const auto in_memory = train(mesh, options);

  options.tiers = {.master = zero::Tier::Disk, .optimizer = zero::Tier::Disk};
  options.offload.path = ".";             // a directory on a disk; the files have no names there
  options.offload.piece_numel = 1 << 14;  // small, as the model is: each buffer holds the states of so many
  const auto on_disk = train(mesh, options);

  for (size_t i = 0; i < on_disk.size(); ++i)
    if (!torch::equal(in_memory[i], on_disk[i])) throw std::runtime_error("the values differ");
  if (mesh.rank() == 0) std::printf("the same values as in memory\n");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

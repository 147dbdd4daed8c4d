// A model in two stages, each on a rank of its own: micro-batches go through both, and a schedule says who
// does what when. Run on two ranks: zero launch --ranks 2 -- example_pipeline
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

constexpr int64_t kWidth = 32;
constexpr int kMicroBatches = 6;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return zero::lazily([] {
    return torch::nn::Sequential(torch::nn::Linear(3, kWidth), Block(), Block(), Block(), Block(),
                                 torch::nn::Linear(kWidth, 1));
  });
}

// Of any number of samples: sizes travel with the tensors.
torch::Tensor inputs_of(int step, int micro_batch) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + micro_batch);
  return torch::rand({16 + micro_batch, 3}, generator);
}
torch::Tensor loss_of(const torch::Tensor& out, const torch::Tensor& inputs) {
  return torch::mse_loss(out, inputs.prod(1, /*keepdim=*/true));
}

/// The losses of each step, by stages on the ranks of `mesh`.
std::vector<double> train(const zero::Mesh& mesh, const std::string& schedule) {
  auto net = make_net();
  // What a rank has of the net is sharded over "dp", here of one rank: stages 0 to 3 work as without a
  // pipeline.
  const std::vector<int64_t> counts = mesh.size() == 2 ? std::vector<int64_t>{3, 3} : std::vector<int64_t>{6};
  zero::Pipeline pipeline(*net, zero::stages_of(*net, counts), zero::AdamW{.lr = 3e-3}, {.stage = 2},
                          {.micro_batches = kMicroBatches, .schedule = schedule}, mesh);
  std::vector<double> losses;
  for (int step = 0; step < 20; ++step) {
    // The first function is called on the first stage's rank alone, the second on the last one's.
    auto of_step = pipeline.train(
        [&](int i) { return zero::StageTensors{inputs_of(step, i)}; },
        [&](const zero::StageTensors& out, int i) { return loss_of(out[0], inputs_of(step, i)); });
    pipeline.step();
    losses.push_back(of_step.mean().item<double>());
  }
  return losses;
}

/// The same without a pipeline.
std::vector<double> train_alone() {
  auto net = make_net();
  zero::Engine engine(*net, zero::AdamW{.lr = 3e-3}, {.accumulation_steps = kMicroBatches},
                      zero::Mesh::join({}));
  std::vector<double> losses;
  for (int step = 0; step < 20; ++step) {
    auto of_step = torch::zeros({kMicroBatches}, torch::kDouble);
    for (int i = 0; i < kMicroBatches; ++i) {
      auto loss =
          engine.forward([&] { return loss_of(net->forward(inputs_of(step, i)), inputs_of(step, i)); });
      engine.backward(loss);
      of_step[i] = loss.detach().to(torch::kDouble);
    }
    engine.step();
    losses.push_back(of_step.mean().item<double>());
  }
  return losses;
}

int main() {
  zero::MeshOptions options;
  options.axes = {{"pp", -1}, {"dp", 1}};
  const auto mesh = zero::Mesh::from_environment(options);
  const auto alone = train_alone();
  bool equal = true;
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    const auto losses = train(mesh, schedule);
    equal = equal && losses == alone;
    if (mesh.rank() == 0)
      std::printf("%-6s loss %.6f -> %.6f\n", schedule.c_str(), losses.front(), losses.back());
  }
  if (mesh.rank() == 0) std::printf("the bits of one process: %s\n", equal ? "yes" : "no");
  return equal && alone.back() < alone.front() ? 0 : 1;
}

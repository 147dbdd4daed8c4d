// A pipeline of a module that stays as it is: its forward is one function, with a loop and with tensors that
// skip layers. Each rank runs all of it and computes its own part. Run on two ranks: zero launch --ranks 2 --
// example_suspended_forward
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

constexpr int64_t kWidth = 24;
constexpr int kMicroBatches = 4, kSteps = 20;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    in = register_module("in", torch::nn::Linear(3, kWidth));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    drop = register_module("drop", torch::nn::Dropout(0.05));
    out = register_module("out", torch::nn::Linear(2 * kWidth, 1));
  }
  torch::Tensor loss(const torch::Tensor& inputs) {
    const auto first = torch::tanh(in(inputs));
    auto x = first;
    for (const auto& layer : *layers) x = x + drop(torch::gelu(layer->as<torch::nn::Linear>()->forward(x)));
    return torch::mse_loss(out(torch::cat({x, first}, 1)), inputs.prod(1, /*keepdim=*/true));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(1);
  return zero::lazily([] { return Net(); });  // layers of other stages never get memory
}

// All ranks make the same micro-batches, of any number of samples.
torch::Tensor inputs_of(int step, int micro_batch) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + micro_batch);
  return torch::rand({16 + micro_batch, 3}, generator);
}

std::vector<double> train(const zero::Mesh& mesh, const std::string& schedule) {
  auto net = make_net();
  int step = 0;
  const auto forward = [&](int i) { return net->loss(inputs_of(step, i)); };
  zero::Pipeline pipeline(*net, forward, /*units=*/{}, zero::AdamW{.lr = 3e-3}, {.stage = 2},
                          {.micro_batches = kMicroBatches, .schedule = schedule}, mesh);
  torch::manual_seed(7);
  std::vector<double> losses;
  for (; step < kSteps; ++step) {
    losses.push_back(pipeline.train(forward).mean().item<double>());
    pipeline.step();
  }
  return losses;
}

/// The same without a pipeline.
std::vector<double> train_alone() {
  auto net = make_net();
  zero::Engine engine(*net, zero::AdamW{.lr = 3e-3}, {.accumulation_steps = kMicroBatches},
                      zero::Mesh::join({}));
  torch::manual_seed(7);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    auto of_step = torch::zeros({kMicroBatches}, torch::kDouble);
    for (int i = 0; i < kMicroBatches; ++i) {
      const auto loss = engine.forward([&] { return net->loss(inputs_of(step, i)); });
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

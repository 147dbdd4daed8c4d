// An optimizer of your own under ZeRO-2: any torch::optim::Optimizer that treats elements alike. It sees flat
// fp32 shards; its states are saved, resumed and moved between ranks as those of the built-in rules. Run on
// two ranks: zero launch --ranks 2 -- example_custom_rule
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

// Signum (arXiv 1802.04434): the sign of a moving average. For each parameter it keeps what torch's SGD
// keeps, a momentum buffer, and says so: that is how checkpoints know what to write.
class Signum : public torch::optim::SGD, public zero::KeepsBaseState {
 public:
  Signum(std::vector<torch::optim::OptimizerParamGroup> groups, double lr, double beta)
      : SGD(std::move(groups), torch::optim::SGDOptions(lr).momentum(beta)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const auto& options = static_cast<torch::optim::SGDOptions&>(group.options());
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& kept = state()[parameter.unsafeGetTensorImpl()];
        if (!kept) {
          auto fresh = std::make_unique<torch::optim::SGDParamState>();
          fresh->momentum_buffer(torch::zeros_like(parameter));
          kept = std::move(fresh);
        }
        auto& average = static_cast<torch::optim::SGDParamState&>(*kept).momentum_buffer();
        average.lerp_(parameter.grad(), 1 - options.momentum());
        parameter.sub_(average.sign(), options.lr());
      }
    }
    return {};
  }
};

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
}

zero::TorchOptimizer signum() {
  return {
      [](std::vector<torch::optim::OptimizerParamGroup> groups) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<Signum>(std::move(groups), 2e-3, 0.9);
      }};
}

double step(zero::Engine& engine, torch::nn::Sequential& model) {
  auto x = torch::randn({64, 16});
  auto loss = engine.forward([&] { return torch::mse_loss(model->forward(x), x.sum(1, true).tanh()); });
  engine.backward(loss);
  engine.step();
  return loss.item<double>();
}

int main() try {
  auto mesh = zero::Mesh::from_environment();
  auto model = make_model();
  zero::Engine engine(*model, signum(), {.stage = 2}, mesh);
  torch::manual_seed(2 + mesh.rank());
  double first = 0, last = 0;
  for (int i = 0; i < 200; ++i) {
    last = step(engine, model);
    if (i == 0) first = last;
    if (mesh.rank() == 0 && i % 50 == 49) std::printf("step %d loss %.4f\n", i + 1, last);
  }
  const auto checkpoint = engine.save("runs/custom_rule");

  // Another engine goes on from there, at another stage: momentum and all.
  auto other_model = make_model();
  zero::Engine other(*other_model, signum(), {.stage = 3}, mesh);
  other.load(checkpoint);
  for (const std::string& name : engine.parameter_names())
    if (!torch::equal(engine.full_parameter(name), other.full_parameter(name)) ||
        !torch::equal(engine.full_optimizer_state(name, "momentum_buffer"),
                      other.full_optimizer_state(name, "momentum_buffer")))
      throw std::runtime_error(name + " came back with other values");
  if (last > 0.9 * first) throw std::runtime_error("Signum did not learn");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

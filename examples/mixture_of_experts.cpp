// A mixture of experts under ZeRO-3: every expert is a unit of its own, gathered while its tokens pass. Run
// on two ranks: zero launch --ranks 2 -- example_mixture_of_experts
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

struct MixtureImpl : torch::nn::Module {
  MixtureImpl(int width, int count) {
    router = register_module("router", torch::nn::Linear(width, count));
    experts = register_module("experts", torch::nn::ModuleList());
    for (int i = 0; i < count; ++i)
      experts->push_back(torch::nn::Sequential(torch::nn::Linear(width, 2 * width), torch::nn::GELU(),
                                               torch::nn::Linear(2 * width, width)));
  }
  // x [tokens, width] -> the same. Each token goes to the expert that the router likes best, and its result
  // counts by the router's probability, which is how the router learns.
  torch::Tensor forward(const torch::Tensor& x) {
    auto probabilities = router(x).softmax(1);
    auto [weight, chosen] = probabilities.max(1);
    auto result = torch::zeros_like(x);
    for (size_t i = 0; i < experts->size(); ++i) {
      // All ranks run all experts, with no tokens too: so they gather the same units in the same order.
      auto rows = (chosen == static_cast<int64_t>(i)).nonzero().flatten();
      auto y = experts->ptr<torch::nn::SequentialImpl>(i)->forward(x.index_select(0, rows));
      result = result.index_add(0, rows, y * weight.index_select(0, rows).unsqueeze(1));
    }
    // Switch transformers' loss (arXiv 2101.03961, equation 4), least where all experts get as much.
    auto count = static_cast<int64_t>(experts->size());
    auto share = torch::one_hot(chosen, count).to(x.dtype()).mean(0);
    balance = static_cast<double>(count) * (share * probabilities.mean(0)).sum();
    busiest = share.max().item<double>();
    return x + result;
  }
  torch::nn::Linear router{nullptr};
  torch::nn::ModuleList experts{nullptr};
  torch::Tensor balance;
  double busiest = 0;
};
TORCH_MODULE(Mixture);

int main() try {
  auto mesh = zero::Mesh::from_environment();
  torch::manual_seed(1);
  auto model = zero::lazily([] { return Mixture(16, 4); });
  zero::Engine engine(*model, zero::AdamW{.lr = 5e-3}, {.stage = 3}, mesh);
  auto turns = torch::randn({4, 16, 16}) / 4;  // four kinds of tokens, each with a map of its own

  torch::manual_seed(2 + mesh.rank());
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    auto kind = torch::randint(4, {64});
    auto x = torch::randn({64, 16}) * 0.5 + torch::one_hot(kind, 16).to(torch::kFloat) * 3;
    auto y = x + torch::bmm(turns.index_select(0, kind), x.unsqueeze(2)).squeeze(2);
    torch::Tensor error;
    auto loss = engine.forward([&] {
      error = torch::mse_loss(model->forward(x), y);
      return error + 0.01 * model->balance;
    });
    engine.backward(loss);
    engine.step();
    last = error.item<double>();
    if (step == 0) first = last;
    if (mesh.rank() == 0 && step % 50 == 49)
      std::printf("step %d error %.4f, busiest expert %.0f %%\n", step + 1, last, 100 * model->busiest);
  }
  if (last > 0.5 * first) throw std::runtime_error("the experts did not learn");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

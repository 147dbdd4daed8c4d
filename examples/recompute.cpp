// Less memory for activations: blocks that are computed again in backward, and a loss that never holds all
// logits. Run on two ranks: zero launch --ranks 2 -- example_recompute
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

constexpr int64_t kVocabulary = 500, kWidth = 64;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(kWidth, 8 * kWidth));
    down = register_module("down", torch::nn::Linear(8 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + torch::dropout(down(torch::gelu(up(x))), 0.1, is_training());
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const zero::RecomputePolicy& policy) : chain(policy) {
    table = register_module("table", torch::nn::Embedding(kVocabulary, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 6; ++i) blocks->push_back(Block());
  }
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
    // One line for all blocks. zero::recompute([&](auto& x) { return block->forward(x); }, x) is that for
    // one.
    auto x = chain.run(table(tokens), 0, std::ssize(*blocks), [this](const torch::Tensor& x, int64_t i) {
      return blocks[i]->as<Block>()->forward(x);
    });
    return zero::linear_cross_entropy(x, table->weight, targets);
  }
  zero::BlockChain chain;
  torch::nn::Embedding table{nullptr};
  torch::nn::ModuleList blocks{nullptr};
};
TORCH_MODULE(Net);

double train(const zero::Mesh& mesh, const zero::RecomputePolicy& policy) {
  torch::manual_seed(1);
  auto net = zero::lazily([&] { return Net(policy); });
  zero::Engine engine(*net, zero::AdamW{.lr = 1e-3}, {.stage = 3}, mesh);
  torch::manual_seed(2 + mesh.rank());
  double last = 0;
  for (int step = 0; step < 20; ++step) {
    auto tokens = torch::randint(kVocabulary, {4, 128});
    auto loss = engine.forward([&] { return net->loss(tokens, tokens * 7 % kVocabulary); });
    engine.backward(loss);
    engine.step();
    last = loss.item<double>();
    // An automatic policy has measured its blocks by now, and says what it does from here on.
    if (!net->chain.must_choose()) continue;
    const auto said = net->chain.choose(mesh);
    if (mesh.rank() == 0) std::printf("%s\n", said.c_str());
  }
  return last;
}

int main() try {
  auto mesh = zero::Mesh::from_environment();
  const double plain = train(mesh, {}), all = train(mesh, {.every = zero::kRecomputeAll}),
               some = train(mesh, {.every = zero::kRecomputeAuto, .memory_bytes = 12 << 20});
  if (mesh.rank() == 0) std::printf("loss %.6f with, %.6f and %.6f without activations\n", plain, all, some);
  return plain == all && plain == some ? 0 : 1;  // to the last bit
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

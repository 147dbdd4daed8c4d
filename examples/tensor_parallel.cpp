// Your own module, unmodified, with its layers cut over ranks: zero launch --ranks 2 --
// example_tensor_parallel
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

// Attention with a hard-coded number of heads: it reads the sizes of the whole, whatever this rank holds.
struct BlockImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 64, kHeads = 4;

  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto batch = x.size(0), length = x.size(1);
    auto parts = qkv(norm(x)).chunk(3, -1);
    for (auto& part : parts) part = part.view({batch, length, kHeads, kWidth / kHeads}).transpose(1, 2);
    auto y = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    y = x + out(y.transpose(1, 2).reshape({batch, length, kWidth}));
    return y + down(torch::gelu(up(y)));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  static constexpr int64_t kWords = 99;  // of which two ranks have 49 and 50

  ModelImpl() {
    words = register_module("words", torch::nn::Embedding(kWords, BlockImpl::kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    head = register_module("head", torch::nn::Linear(BlockImpl::kWidth, kWords));
  }
  torch::Tensor loss(const torch::Tensor& ids, const torch::Tensor& targets) {
    auto x = words(ids);
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return torch::cross_entropy_loss(head(x).flatten(0, 1), targets.flatten());
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Model);

int main() try {
  zero::MeshOptions mesh_options;
  mesh_options.axes = {{"dp", 1}, {"tp", -1}};
  auto mesh = zero::Mesh::from_environment(mesh_options);
  torch::manual_seed(1);
  auto model = zero::lazily([] { return Model(); });
  const zero::TensorParallelPlan plan{{"words.weight", "vocab"},      {"head.*", "vocab"},
                                      {"blocks.*.qkv.*", "fused[3]"}, {"blocks.*.out.weight", "rowwise"},
                                      {"blocks.*.up.*", "colwise"},   {"blocks.*.down.weight", "rowwise"}};
  const auto parallel = zero::parallelize(*model, plan, mesh, {.sequence = true});
  zero::EngineOptions options{.stage = 3};
  parallel.add_to(options);
  zero::Engine engine(*model, zero::AdamW{.lr = 3e-3}, options, mesh);

  torch::manual_seed(2);  // ranks that share layers have the same data
  for (int step = 0; step < 60; ++step) {
    const auto ids = torch::randint(0, ModelImpl::kWords, {4, 16});
    const auto targets = (ids * 7 + 3).remainder(ModelImpl::kWords);
    const auto loss = engine.forward([&] { return model->loss(ids, targets); });
    engine.backward(loss);
    engine.step();
    if (mesh.rank() == 0 && step % 20 == 19)
      std::printf("step %d loss %.4f\n", step + 1, loss.item<double>());
  }
  const auto report = parallel.report();
  if (mesh.rank() == 0) {
    std::printf("of %zu parameters each of %d ranks holds a part\n", report.cut.size(), mesh.size());
    for (const auto& [op, why] : report.gathered)
      std::printf("computed of gathered tensors: %s, as %s\n", op.c_str(), why.c_str());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

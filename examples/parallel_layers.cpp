// A model written of tensor-parallel layers, which need no plan: zero launch --ranks 2 --
// example_parallel_layers
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

struct BlockImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 48, kHeads = 6, kKeyHeads = 3, kHidden = 131;

  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    // Queries, keys and values of one product, of which each rank has whole heads.
    attention = register_module("attention", zero::ParallelAttention(zero::ParallelAttentionOptions{
                                                 .width = kWidth, .heads = kHeads, .kv_heads = kKeyHeads}));
    up = register_module("up", zero::ColumnParallelLinear(kWidth, kHidden));
    down = register_module("down", zero::RowParallelLinear(zero::RowParallelLinearOptions{
                                       .in = kHidden, .out = kWidth, .input_is_parallel = true}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = x + attention(norm(x));
    return y + down(torch::gelu(up(y)));
  }
  torch::nn::LayerNorm norm{nullptr};
  zero::ParallelAttention attention{nullptr};
  zero::ColumnParallelLinear up{nullptr};
  zero::RowParallelLinear down{nullptr};
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  static constexpr int64_t kWords = 99;  // of which two ranks have 49 and 50

  ModelImpl() {
    words = register_module("words", zero::VocabParallelEmbedding(kWords, BlockImpl::kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    head = register_module("head", zero::ColumnParallelLinear(BlockImpl::kWidth, kWords));
  }
  torch::Tensor loss(const torch::Tensor& ids, const torch::Tensor& targets) {
    auto x = words(ids);
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return zero::vocab_parallel_cross_entropy(head(x), targets, {.label_smoothing = 0.05});
  }
  zero::VocabParallelEmbedding words{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  zero::ColumnParallelLinear head{nullptr};
};
TORCH_MODULE(Model);

int main() try {
  zero::MeshOptions mesh_options;
  mesh_options.axes = {{"dp", 1}, {"tp", -1}};
  auto mesh = zero::Mesh::from_environment(mesh_options);
  torch::manual_seed(1);
  auto model = zero::lazily([] { return Model(); });
  const auto parallel = zero::parallelize(*model, {}, mesh, {.sequence = true});
  zero::EngineOptions options{.stage = 3, .gradient_clipping = 1.0};
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
  if (mesh.rank() == 0)
    std::printf("of %zu parameters each of %d ranks holds a part\n", parallel.report().cut.size(),
                mesh.size());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

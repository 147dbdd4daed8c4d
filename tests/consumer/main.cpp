// Uses the installed library as another project would: shards a module and a TorchScript module over the
// ranks there are, trains them, and checks that they learn, that a rank holds only its share, and that errors
// arrive as zero::Error. The argument, if any, is a SentencePiece model, opened first: that libsentencepiece
// is loaded must not matter.

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <zero/engine.h>
#include <zero/error.h>
#include <zero/mesh.h>
#include <zero/tokenizer.h>

#include <cstdio>

struct Net : torch::nn::Module {
  torch::Tensor loss(const torch::Tensor& x) {
    return (out(torch::tanh(in(x))) - x.sum(1, true).sin()).square().mean();
  }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(4, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
};

struct Losses {
  double first = 0, last = 0;
  bool fell() const { return last < first / 4; }
};

template <class Loss>
Losses train(zero::Engine& engine, const Loss& loss_of) {
  Losses losses;
  for (int step = 0; step < 100; ++step) {
    const torch::Tensor loss = engine.forward(loss_of);
    engine.backward(loss);
    engine.step();
    losses.last = loss.template item<double>();
    if (step == 0) losses.first = losses.last;
  }
  return losses;
}

Losses train_script(const torch::Tensor& x, const zero::Mesh& mesh) {
  torch::jit::Module module("Script");
  module.register_parameter("inner", torch::randn({4, 64}).set_requires_grad(true), false);
  module.register_parameter("out", torch::zeros({64, 1}).set_requires_grad(true), false);
  module.define(
      "def forward(self, x):\n  return torch.matmul(torch.tanh(torch.matmul(x, self.inner)), self.out)\n");
  zero::Engine engine(module, zero::AdamW{.lr = 1e-2, .weight_decay = 0}, {.stage = 3}, mesh);
  return train(engine,
               [&] { return (module.forward({x}).toTensor() - x.sum(1, true).sin()).square().mean(); });
}

int main(int argc, char** argv) try {
  const zero::Mesh mesh = zero::Mesh::from_environment();
  const bool reads = argc < 2 || zero::Tokenizer::load(argv[1]).encode("any text").size() > 1;
  torch::manual_seed(1);
  Net net;
  zero::Engine engine(net, zero::AdamW{.lr = 1e-2, .weight_decay = 0}, {.stage = 3}, mesh);

  torch::manual_seed(mesh.rank());
  const torch::Tensor x = torch::randn({64, 4});
  const Losses losses = train(engine, [&] { return net.loss(x); });
  torch::manual_seed(2);
  const Losses script = train_script(x, mesh);
  const int64_t all_bytes = (4 * 64 + 64 + 64 + 1) * 4, share = engine.plan().rank.parameter_bytes;
  const bool shares = share * mesh.size() >= all_bytes && share * mesh.size() < all_bytes + all_bytes / 4;

  bool refused = false;
  try {
    zero::Engine(net, zero::AdamW{}, {.stage = 7}, mesh);
  } catch (const zero::Error& error) {
    refused = error.kind() == zero::ErrorKind::Config;
  }
  const bool ok = losses.fell() && script.fell() && shares && refused && reads;
  if (mesh.rank() == 0 || !ok)
    std::printf(
        "consumer: %s: rank %d of %d, loss %.4f, then %.4f, TorchScript %.4f, then %.4f, %lld bytes, refused "
        "%d, "
        "tokenizer %d\n",
        ok ? "ok" : "wrong", mesh.rank(), mesh.size(), losses.first, losses.last, script.first, script.last,
        static_cast<long long>(share), refused, reads);
  return ok ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

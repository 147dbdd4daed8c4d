// Uses the installed library as another project would: shards a module over the ranks there are, trains it,
// and checks that it learns, that a rank holds only its share, and that errors arrive as zero::Error.

#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <zero/engine.h>
#include <zero/error.h>
#include <zero/mesh.h>

#include <cstdio>

struct Net : torch::nn::Module {
  torch::Tensor loss(const torch::Tensor& x) {
    return (out(torch::tanh(in(x))) - x.sum(1, true).sin()).square().mean();
  }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(4, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
};

int main() try {
  const zero::Mesh mesh = zero::Mesh::from_environment();
  Net net;
  zero::Engine engine(net, zero::AdamW{.lr = 1e-2, .weight_decay = 0}, {.stage = 3}, mesh);

  torch::manual_seed(mesh.rank());
  const torch::Tensor x = torch::randn({64, 4});
  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) {
    const torch::Tensor loss = engine.forward([&] { return net.loss(x); });
    engine.backward(loss);
    engine.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  const int64_t all_bytes = (4 * 64 + 64 + 64 + 1) * 4, share = engine.plan().rank.parameter_bytes;
  const bool shares = share * mesh.size() >= all_bytes && share * mesh.size() < all_bytes + all_bytes / 4;

  bool refused = false;
  try {
    zero::Engine(net, zero::AdamW{}, {.stage = 7}, mesh);
  } catch (const zero::Error& error) {
    refused = error.kind() == zero::ErrorKind::Config;
  }
  const bool ok = last < first / 4 && shares && refused;
  if (mesh.rank() == 0 || !ok)
    std::printf("consumer: %s: rank %d of %d, loss %.4f, then %.4f, %lld bytes, refused %d\n",
                ok ? "ok" : "wrong", mesh.rank(), mesh.size(), first, last, static_cast<long long>(share),
                refused);
  return ok ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

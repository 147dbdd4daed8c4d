// A TorchScript model from Python (torchscript.py exports one) under ZeRO-3: example_torchscript FILE
// Without FILE it makes the same model itself. Run on two ranks: zero launch --ranks 2 -- example_torchscript
#include <torch/script.h>
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>

// What torchscript.py makes in Python.
torch::jit::Module make_net() {
  torch::manual_seed(1);
  torch::jit::Module net("Net");
  const auto linear = [&](const std::string& name, int in, int out) {
    torch::nn::Linear values(in, out);
    torch::jit::Module layer(name);
    layer.register_parameter("weight", values->weight, /*is_buffer=*/false);
    layer.register_parameter("bias", values->bias, /*is_buffer=*/false);
    layer.define("def forward(self, x):\n  return torch.matmul(x, self.weight.t()) + self.bias\n");
    net.register_module(name, layer);
  };
  linear("body", 32, 64);
  linear("head", 64, 4);
  net.define("def forward(self, x):\n  return self.head.forward(torch.tanh(self.body.forward(x)))\n");
  return net;
}

int main(int argc, char** argv) try {
  auto mesh = zero::Mesh::from_environment();
  auto model = argc > 1 ? torch::jit::load(argv[1]) : make_net();
  zero::Engine engine(model, zero::AdamW{.lr = 5e-3}, {.stage = 3, .gradient_clipping = 1.0}, mesh);

  torch::manual_seed(2 + mesh.rank());
  double first = 0, last = 0;
  for (int step = 0; step < 150; ++step) {
    auto x = torch::randn({64, 32});
    auto labels = x.narrow(1, 0, 4).argmax(1);  // which of the first four is the largest
    auto loss =
        engine.forward([&] { return torch::cross_entropy_loss(model.forward({x}).toTensor(), labels); });
    engine.backward(loss);
    engine.step();
    last = loss.item<double>();
    if (step == 0) first = last;
    if (mesh.rank() == 0 && step % 50 == 49) std::printf("step %d loss %.4f\n", step + 1, last);
  }
  if (mesh.rank() == 0)
    std::printf("%zu parameters, of which each of %d ranks held %lld bytes\n",
                engine.parameter_names().size(), mesh.size(),
                static_cast<long long>(engine.plan().rank.parameter_bytes));
  if (last > 0.5 * first) throw std::runtime_error("the model did not learn");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

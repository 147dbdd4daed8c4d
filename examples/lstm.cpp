// An LSTM that learns a text by heart, character by character, under ZeRO-3. Run on two ranks:
// zero launch --ranks 2 -- example_lstm
#include <torch/torch.h>
#include <zero/zero.h>

#include <cstdio>
#include <string>

const std::string kText =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity. ";

struct CharacterModelImpl : torch::nn::Module {
  CharacterModelImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(128, 32));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(32, 96).batch_first(true)));
    head = register_module("head", torch::nn::Linear(96, 128));
  }
  // characters [batch, length] -> logits [batch, length, 128]; `state` goes on where it was.
  torch::Tensor forward(const torch::Tensor& characters, std::tuple<torch::Tensor, torch::Tensor>& state) {
    auto [output, next] = lstm->forward(embedding(characters), state);
    state = next;
    return head(output);
  }
  static std::tuple<torch::Tensor, torch::Tensor> start(int batch) {
    return {torch::zeros({1, batch, 96}), torch::zeros({1, batch, 96})};
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(CharacterModel);

int main() try {
  auto mesh = zero::Mesh::from_environment();
  torch::manual_seed(1);
  auto model = zero::lazily([] { return CharacterModel(); });
  zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, {.stage = 3, .gradient_clipping = 1.0}, mesh);

  const std::vector<int64_t> characters(kText.begin(), kText.end());
  const auto text = torch::tensor(characters);
  torch::manual_seed(2 + mesh.rank());
  double last = 0;
  for (int step = 0; step < 150; ++step) {
    std::vector<torch::Tensor> inputs, targets;
    for (int i = 0; i < 8; ++i) {
      const int64_t begin = torch::randint(text.size(0) - 41, {1}).item<int64_t>();
      inputs.push_back(text.narrow(0, begin, 40));
      targets.push_back(text.narrow(0, begin + 1, 40));
    }
    auto loss = engine.forward([&] {
      auto state = CharacterModelImpl::start(8);
      auto logits = model->forward(torch::stack(inputs), state);
      return torch::cross_entropy_loss(logits.flatten(0, 1), torch::stack(targets).flatten());
    });
    engine.backward(loss);
    engine.step();
    last = loss.item<double>();
    if (mesh.rank() == 0 && step % 50 == 49) std::printf("step %d loss %.4f\n", step + 1, last);
  }

  // One character at a time, the state carried along; parameters stay gathered meanwhile.
  torch::NoGradGuard no_grad;
  model->eval();
  zero::GatherScope whole(engine);
  auto state = CharacterModelImpl::start(1);
  std::string written = "It was the best";
  torch::Tensor logits;
  for (const char c : written) logits = model->forward(torch::full({1, 1}, int64_t{c}, torch::kLong), state);
  while (written.size() < 80) {
    written += static_cast<char>(logits.flatten().argmax().item<int64_t>());
    logits = model->forward(torch::full({1, 1}, int64_t{written.back()}, torch::kLong), state);
  }
  if (mesh.rank() == 0) std::printf("%s\n", written.c_str());
  if (last > 0.5) throw std::runtime_error("the text was not learnt");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

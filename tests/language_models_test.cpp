// GPT-2, Llama and GPT-NeoX against what transformers computes, from directories in its layout; trees against
// the plan; the key-value cache and adapters against plain forwards.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hf/model_directory.h"
#include "support/expect_error.h"
#include "support/golden_gpt2.h"
#include "support/safetensors_files.h"
#include "support/temporary_directory.h"
#include "zero/generate.h"
#include "zero/language_model.h"

namespace zero {
namespace {

using Json = nlohmann::json;

// As tests/golden/make.py: exact in fp32.
torch::Tensor golden_value(const std::string& name, torch::IntArrayRef sizes) {
  auto value =
      (golden::scrambled(golden::seed_of(name), c10::multiply_integers(sizes)).remainder(4096) - 2048)
          .to(torch::kFloat) *
      0x1p-13;
  const bool is_norm = name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos;
  if (is_norm && name.ends_with(".weight")) value = value + 1;
  return value.view(sizes);
}

/// A recorded model, its directory written as transformers names and shapes the tensors.
class GoldenModel {
 public:
  explicit GoldenModel(const Json& record) : record_(record), name_(record.at("name")) {
    directory_.write("config.json", record.at("config").dump());
    std::vector<testing::FileTensor> tensors;
    for (const auto& [name, shape] : record.at("tensors").items()) {
      const torch::Tensor value = golden_value(name, shape.get<std::vector<int64_t>>()).contiguous();
      const float* first = value.const_data_ptr<float>();
      tensors.push_back(testing::file_tensor(name, Dtype::f32, shape.get<std::vector<int64_t>>(),
                                             std::vector<float>(first, first + value.numel())));
    }
    directory_.write("model.safetensors", testing::safetensors_bytes(tensors));
    config_.model = hf::read_model_config(directory_.path());
  }

  std::shared_ptr<LanguageModel> load() const {
    const torch::NoGradGuard no_grad;
    auto model = make_language_model(shape_of(config_));
    std::vector<hf::WantedTensor> wanted;
    for (const auto& p : model->named_parameters()) wanted.push_back({p.key(), p.value().sizes().vec()});
    const hf::Weights weights(directory_.path());
    for (const auto& [own, stored] : hf::match(weights, config_.model, wanted)) {
      torch::Tensor value = model->named_parameters()[own];
      weights.read(stored, BoxRange::whole(value.sizes()),
                   {value.data_ptr<float>(), static_cast<size_t>(value.numel())});
    }
    return model;
  }

  torch::Tensor tokens(const std::string& what) const {
    const int64_t batch = record_.at("batch"), sequence = record_.at("sequence");
    const auto noise = golden::scrambled(golden::seed_of(name_ + what), batch * sequence);
    return noise.remainder(config_.model.vocab_size).view({batch, sequence});
  }

  const Json& record() const { return record_; }
  const Config& config() const { return config_; }
  const std::string& name() const { return name_; }

 private:
  Json record_;
  std::string name_;
  testing::TemporaryDirectory directory_;
  Config config_;
};

std::vector<Json> records() { return golden::read_json("models.json").get<std::vector<Json>>(); }

TEST(LanguageModels, LogitsEqualTransformers) {
  for (const Json& record : records()) {
    const GoldenModel golden_model(record);
    const auto model = golden_model.load();
    model->eval();
    const auto expected = record.at("logits").get<std::vector<float>>();
    const torch::Tensor logits = model->forward(golden_model.tokens(".tokens")).flatten();
    ASSERT_EQ(logits.numel(), std::ssize(expected)) << golden_model.name();
    double worst = 0;
    for (size_t i = 0; i < expected.size(); i++)
      worst = std::max(worst, std::abs(double{logits.const_data_ptr<float>()[i]} - expected[i]));
    EXPECT_LT(worst, 1e-4) << golden_model.name();
  }
}

TEST(LanguageModels, LossAndGradientsEqualTransformers) {
  for (const Json& record : records()) {
    const GoldenModel golden_model(record);
    const auto model = golden_model.load();
    model->eval();
    const auto loss = model->loss(golden_model.tokens(".tokens"), golden_model.tokens(".targets"));
    EXPECT_NEAR(loss.item<double>(), record.at("loss").get<double>(), 1e-4) << golden_model.name();
    loss.backward();
    size_t compared = 0;
    for (const auto& parameter : model->named_parameters()) {
      const std::string name = hf::hf_name(golden_model.config().model, parameter.key());
      const auto expected = record.at("gradients").at(name).get<std::vector<double>>();
      const torch::Tensor gradient = parameter.value().grad().flatten();
      const auto known =
          (golden::scrambled(golden::seed_of("gradient." + name), gradient.numel()).remainder(2001) - 1000)
              .to(torch::kDouble) /
          1000;
      const auto wide = gradient.to(torch::kDouble);
      const std::string place = golden_model.name() + " " + name;
      const double tolerance = 1e-4 * std::max(1.0, expected[0]);
      EXPECT_NEAR(wide.norm().item<double>(), expected[0], tolerance) << place;
      EXPECT_NEAR((wide * known).sum().item<double>(), expected[1], tolerance) << place;
      for (size_t i = 2; i < expected.size(); i++)
        EXPECT_NEAR(wide[static_cast<int64_t>(i) - 2].item<double>(), expected[i], 1e-4)
            << place << " " << i - 2;
      compared++;
    }
    EXPECT_EQ(compared, record.at("gradients").size()) << golden_model.name();
  }
}

TEST(LanguageModels, AdaptersStandBesideLinearLayers) {
  for (const Json& record : records()) {
    Config config = GoldenModel(record).config();
    const auto model = make_language_model(shape_of(config));
    EXPECT_TRUE(model->buffers().empty());
    const std::vector<std::string> names = linear_layer_names(*model);
    const auto before = std::ssize(model->parameters());
    config.lora.rank = 3;
    config.lora.targets = {"*"};
    EXPECT_EQ(add_adapters(*model, config.lora), std::ssize(names));
    EXPECT_EQ(std::ssize(model->parameters()), before + 2 * std::ssize(names));
    const auto parameters = model->named_parameters();
    for (const std::string& name : names) {
      EXPECT_EQ(parameters[name + ".lora_A.weight"].size(0), 3) << name;
      EXPECT_EQ(parameters[name + ".lora_B.weight"].size(1), 3) << name;
    }
  }
}

// As stages of a pipeline run a model: each part by itself, its input cut off from the graph before.
TEST(LanguageModels, PartsMakeTheWhole) {
  for (const Json& record : records()) {
    const GoldenModel golden_model(record);
    const std::string& name = golden_model.name();
    const auto model = golden_model.load(), whole = golden_model.load();
    const torch::Tensor tokens = golden_model.tokens(".tokens"), targets = golden_model.tokens(".targets");
    const int64_t count = model->block_count();
    ASSERT_GE(count, 1) << name;
    torch::Tensor expected = whole->loss(tokens, targets);
    expected.backward();

    const torch::Tensor entered = model->first_part(tokens);
    const torch::Tensor first_in = entered.detach().requires_grad_();
    const torch::Tensor middle = model->run_blocks(first_in, 0, 1);
    const torch::Tensor second_in = middle.detach().requires_grad_();
    const torch::Tensor last = model->run_blocks(second_in, 1, count);
    EXPECT_TRUE(torch::equal(model->last_part(last), whole->forward(tokens))) << name;
    const torch::Tensor loss = model->last_part_loss(last, targets);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5) << name;
    loss.backward();
    middle.backward(second_in.grad());
    entered.backward(first_in.grad());
    const auto gradients = whole->named_parameters();
    for (const auto& parameter : model->named_parameters())
      EXPECT_TRUE(torch::allclose(parameter.value().grad(), gradients[parameter.key()].grad(), 1e-4, 1e-5))
          << name << " " << parameter.key();

    const torch::NoGradGuard no_grad;
    KeyValueCache cache(tokens.size(1));
    torch::Tensor x = model->first_part(tokens.narrow(1, 0, 2));
    model->run_blocks(x, 0, count, &cache);
    cache.advance(2);
    x = model->first_part(tokens.slice(1, 2), /*begin=*/2);
    x = model->run_blocks(model->run_blocks(x, 0, 1, &cache), 1, count, &cache);
    EXPECT_TRUE(torch::allclose(model->last_part(x), whole->forward(tokens).slice(1, 2), 1e-4, 1e-5)) << name;
    EXPECT_ERROR(model->run_blocks(x, 1, count + 1), Usage, "there are no blocks 1 to");
  }
}

// Token by token, and in pieces: what the cache holds must be what a plain forward computes anew.
TEST(LanguageModels, TheCacheChangesNothing) {
  const torch::NoGradGuard no_grad;
  for (const Json& record : records()) {
    const GoldenModel golden_model(record);
    const auto model = golden_model.load();
    model->eval();
    const torch::Tensor tokens = golden_model.tokens(".tokens");
    const torch::Tensor whole = model->forward(tokens);
    const int64_t sequence = tokens.size(1);
    for (const int64_t step : {int64_t{1}, int64_t{3}, sequence}) {
      KeyValueCache cache(sequence);
      for (int64_t begin = 0; begin < sequence; begin += step) {
        const int64_t count = std::min(step, sequence - begin);
        const torch::Tensor part = model->forward(tokens.narrow(1, begin, count), cache);
        EXPECT_LT((part - whole.narrow(1, begin, count)).abs().max().item<double>(), 1e-5)
            << golden_model.name();
        EXPECT_EQ(cache.length(), begin + count);
      }
    }
    KeyValueCache small(sequence - 1);
    EXPECT_ERROR(model->forward(tokens, small), Usage, "do not fit");
    KeyValueCache cache(sequence);
    const torch::AutoGradMode with_gradients(true);
    EXPECT_ERROR(model->forward(tokens, cache), Usage, "no gradients");
  }
}

// The context is exceeded: the window moves on, and the cache with it.
TEST(LanguageModels, TheCacheGeneratesTheSameTokens) {
  for (const Json& record : records()) {
    const GoldenModel golden_model(record);
    const auto model = golden_model.load();
    model->eval();
    const std::vector<int64_t> prompt{1, 2, 3};
    for (const double temperature : {0.0, 1.0}) {
      const GenerateOptions options{.max_new_tokens = 20, .temperature = temperature, .seed = 5};
      const auto plain = generate_tokens([&](const torch::Tensor& tokens) { return model->forward(tokens); },
                                         prompt, model->context_length(), options);
      EXPECT_EQ(generate_tokens(*model, prompt, options), plain) << golden_model.name();
      EXPECT_EQ(plain.size(), 20u);
    }
  }
}

TEST(Adapters, ChangeNothingUntilTheyAreTrained) {
  for (const Json& record : records()) {
    const GoldenModel golden_model(record);
    const auto model = golden_model.load();
    model->eval();
    const torch::Tensor tokens = golden_model.tokens(".tokens"), before = model->forward(tokens);
    const LoraConfig lora{.rank = 2, .alpha = 8, .targets = {"*"}, .from = {}};
    EXPECT_GT(add_adapters(*model, lora), 3) << golden_model.name();
    EXPECT_TRUE(torch::equal(model->forward(tokens), before)) << golden_model.name();
    EXPECT_ERROR(add_adapters(*model, lora), Usage, "has one already");
    {
      const torch::NoGradGuard no_grad;
      for (auto& p : model->named_parameters())
        if (p.key().ends_with(".lora_B.weight")) p.value().fill_(0.5);
    }
    const torch::Tensor after = model->forward(tokens);
    EXPECT_GT((after - before).abs().max().item<double>(), 1e-3) << golden_model.name();

    // The same as adding alpha / rank * B A to the weights.
    const torch::NoGradGuard no_grad;
    const auto parameters = model->named_parameters();
    const bool transposed = golden_model.name().starts_with("gpt2");
    const auto merged = golden_model.load();
    merged->eval();
    for (auto& p : merged->named_parameters()) {
      const std::string layer = p.key().substr(0, p.key().rfind('.'));
      if (!p.key().ends_with(".weight") || !parameters.contains(layer + ".lora_A.weight")) continue;
      const auto product = parameters[layer + ".lora_B.weight"].mm(parameters[layer + ".lora_A.weight"]) * 4;
      p.value().add_(transposed ? product.t() : product);
    }
    EXPECT_LT((merged->forward(tokens) - after).abs().max().item<double>(), 1e-3) << golden_model.name();
  }
}

}  // namespace
}  // namespace zero

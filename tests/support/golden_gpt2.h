#pragma once
// The small GPT-2 of tests/golden/gpt2_losses.json: its weights and tokens, made by the same integer
// arithmetic as in tests/golden/make_gpt2_losses.py, and the runs that PyTorch recorded.

#include <torch/nn/module.h>
#include <torch/types.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "zero/gpt2.h"

namespace golden {

constexpr int64_t kPrime = (int64_t{1} << 31) - 1;

/// FNV-1a over the name's bytes, 32 bits.
inline int64_t seed_of(const std::string& name) {
  uint32_t value = 2166136261u;
  for (unsigned char byte : name) value = (value ^ byte) * 16777619u;
  return value;
}

/// `count` integers in [0, kPrime). Ordinary operators only, so that it also runs in a lazily built
/// constructor.
inline torch::Tensor scrambled(int64_t seed, int64_t count) {
  auto x = (torch::arange(count, torch::kLong) + seed % kPrime).remainder(kPrime);
  for (int64_t increment : {seed % 65521 + 1, int64_t{12345}, int64_t{777}})
    x = (x * x + increment).remainder(kPrime);
  return x;
}

inline torch::Tensor initial_value(const std::string& name, torch::IntArrayRef sizes) {
  auto value =
      (scrambled(seed_of(name), c10::multiply_integers(sizes)).remainder(4096) - 2048).to(torch::kFloat);
  value = value * 0x1p-14;
  if (name.find("ln_") != std::string::npos && name.ends_with(".weight")) value = value + 1;
  return value.view(sizes);
}

/// Gives every parameter of a GPT-2 its golden value, which follows from its name and shape alone.
inline void initialise(torch::nn::Module& model) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : model.named_parameters())
    parameter.value().copy_(initial_value(parameter.key(), parameter.value().sizes()));
}

struct Batch {
  torch::Tensor tokens, targets;  // [global_batch, context_length] int64
};

/// The global batch of a step, the same for every way of splitting it over ranks: rank r takes rows, not
/// columns.
inline Batch batch(int64_t step, int64_t global_batch, const zero::Gpt2Shape& shape) {
  const int64_t length = shape.context_length + 1;
  const auto noise = scrambled(seed_of("tokens." + std::to_string(step)), global_batch * length);
  const int64_t* random = noise.const_data_ptr<int64_t>();
  auto rows = torch::empty({global_batch, length}, torch::kLong);
  auto row = rows.accessor<int64_t, 2>();
  for (int64_t i = 0; i < global_batch; i++) {
    for (int64_t j = 0; j < length; j++, random++) {
      const bool by_rule = j > 0 && *random % 8 != 0;
      row[i][j] = (by_rule ? 5 * row[i][j - 1] + 3 : *random) % shape.vocab_size;
    }
  }
  return {rows.slice(1, 0, -1), rows.slice(1, 1)};
}

/// One recorded run. Each step: forward, backward, clip the global norm to `clip`, optimizer step.
struct Run {
  std::string optimizer;  // "adamw", "adam" or "sgd"
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, momentum = 0, weight_decay = 0, clip = 0;
  int64_t global_batch = 0;
  std::vector<double> losses;          // before each step's update
  std::vector<double> gradient_norms;  // before clipping
};

struct Recording {
  zero::Gpt2Shape shape;
  std::vector<Run> runs;

  const Run& run(const std::string& optimizer, int64_t global_batch) const {
    for (const Run& r : runs)
      if (r.optimizer == optimizer && r.global_batch == global_batch) return r;
    throw std::out_of_range("no recorded run of " + optimizer + " at batch " + std::to_string(global_batch));
  }
};

inline nlohmann::json read_json(const std::string& name) {
  std::ifstream file(std::string(ZERO_TEST_DATA "/golden/") + name);
  return nlohmann::json::parse(file);
}

/// tests/golden/gpt2_losses.json: "adamw" at 4, 12 and 36 rows, "adam" and "sgd" at 12; 36 divides by every
/// ranks x accumulation of the sharding tests.
inline Recording recording() {
  const auto json = read_json("gpt2_losses.json");
  const auto& shape = json.at("shape");
  Recording result;
  result.shape = {.vocab_size = shape.at("vocab_size"),
                  .context_length = shape.at("context_length"),
                  .layers = shape.at("layers"),
                  .width = shape.at("width"),
                  .heads = shape.at("heads")};
  for (const auto& r : json.at("runs")) {
    Run run{.optimizer = r.at("optimizer"),
            .lr = r.at("lr"),
            .eps = r.value("eps", 0.0),
            .momentum = r.value("momentum", 0.0),
            .weight_decay = r.at("weight_decay"),
            .clip = r.at("clip"),
            .global_batch = r.at("global_batch"),
            .losses = r.at("losses"),
            .gradient_norms = r.at("gradient_norms")};
    if (r.contains("betas")) run.beta1 = r.at("betas").at(0), run.beta2 = r.at("betas").at(1);
    result.runs.push_back(std::move(run));
  }
  return result;
}

/// A new GPT-2 with the golden weights.
inline zero::Gpt2 make_model(const zero::Gpt2Shape& shape) {
  zero::Gpt2 model(shape);
  initialise(*model);
  return model;
}

}  // namespace golden

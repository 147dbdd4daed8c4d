// TorchScript traces of small transformers models of many architectures, unmodified, at every stage on two
// ranks: the losses and the parameters that PyTorch recorded in one process (tests/golden/traced_models.py).
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/utils.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/ranks.h"
#include "zero/engine.h"

namespace {
using torch::Tensor;

constexpr int64_t kWords = 64, kLength = 8, kBatch = 2, kPixels = 16;

nlohmann::json recorded_models() {
  std::ifstream file(std::string(ZERO_TEST_DATA) + "/golden/traced_models.json");
  return nlohmann::json::parse(file).at("models");
}

// As traced_models.py's inputs().
std::vector<c10::IValue> inputs_of(const std::string& kind, int64_t step, int64_t rank) {
  const int64_t first = 1000 * step + 100 * rank;
  const Tensor classes = (torch::arange(kBatch) + rank + step).remainder(2);
  if (kind == "images") {
    const Tensor pixels =
        ((torch::arange(kBatch * 3 * kPixels * kPixels) * 7 + first).remainder(33) - 16).to(torch::kFloat) /
        16;
    return {pixels.view({kBatch, 3, kPixels, kPixels}), classes};
  }
  const Tensor places = torch::arange(kBatch * kLength);
  const Tensor ids = (3 + (places * places * 5 + first).remainder(kWords - 3)).view({kBatch, kLength});
  return {ids, kind == "words" ? ids.clone() : classes};
}

struct Course {
  std::vector<double> losses;
  double sum_of_squares = 0;
};

Course train(const std::string& name, const std::string& kind, int stage, const zero::Mesh& mesh,
             size_t steps) {
  torch::jit::Module model = torch::jit::load(std::string(ZERO_TRACED_MODELS) + "/" + name + ".pt");
  zero::Engine engine(model, zero::AdamW{.lr = 1e-3, .eps = 1e-4, .weight_decay = 0.1}, {.stage = stage},
                      mesh);
  Course course;
  for (size_t step = 0; step < steps; ++step) {
    const Tensor loss = engine.forward(
        [&] { return model.forward(inputs_of(kind, static_cast<int64_t>(step), mesh.rank())).toTensor(); });
    engine.backward(loss);
    engine.step();
    const Tensor sum = loss.detach().to(torch::kDouble).view({1});
    mesh.world().all_reduce(sum, zero::Group::Reduce::Sum, "loss").wait();
    course.losses.push_back(sum.item<double>() / mesh.size());
  }
  for (const std::string& parameter : engine.parameter_names())
    course.sum_of_squares +=
        engine.full_parameter(parameter).to(torch::kDouble).square().sum().item<double>();
  return course;
}

class TracedModels : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, TracedModels, ::testing::Values(0, 1, 2, 3));

TEST_P(TracedModels, TrainAsRecorded) {
  const nlohmann::json models = recorded_models();
  EXPECT_GE(models.size(), 20u);
  zero::testing::run_ranks(2, [&](const zero::Mesh& mesh) {
    for (const auto& [name, model] : models.items()) {
      const auto losses = model.at("losses").get<std::vector<double>>();
      const double squares = model.at("sum_of_squares");
      const Course course = train(name, model.at("kind"), GetParam(), mesh, losses.size());
      for (size_t step = 0; step < losses.size(); ++step)
        EXPECT_NEAR(course.losses[step], losses[step], 2e-6 * losses[step]) << name << ", step " << step;
      EXPECT_NEAR(course.sum_of_squares, squares, 1e-6 * squares) << name;
    }
  });
}

}  // namespace

// Every rule of the table in the engine, however parameters are cut, against its formulas written in
// LibTorch's tensors on whole parameters in one process.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

constexpr int kSteps = 6;
constexpr int64_t kMicro = 2;  // samples of a rank's micro-batch

/// One whole parameter in fp64.
struct Whole {
  Tensor w, m, v;
  void decay_moments(const Tensor& g, double beta1, double beta2) {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
  }
};

Tensor adam_direction(const Whole& p, double beta1, double beta2, double eps, int t) {
  return p.m / (1 - std::pow(beta1, t)) / ((p.v / (1 - std::pow(beta2, t))).sqrt() + eps);
}

// One step of one parameter; t counts from 1.
void plain_step(const zero::AdamW& r, double lr, double decay, int t, const Tensor& g, Whole& p) {
  p.decay_moments(g, r.beta1, r.beta2);
  p.w = p.w * (1 - lr * decay) - lr * adam_direction(p, r.beta1, r.beta2, r.eps, t);
}
void plain_step(const zero::Adam& r, double lr, double decay, int t, const Tensor& g, Whole& p) {
  p.decay_moments(g + decay * p.w, r.beta1, r.beta2);
  p.w = p.w - lr * adam_direction(p, r.beta1, r.beta2, r.eps, t);
}
void plain_step(const zero::SGD& r, double lr, double decay, int t, const Tensor& g, Whole& p) {
  const Tensor decayed = g + decay * p.w;
  p.m = t == 1 ? decayed : r.momentum * p.m + (1 - r.dampening) * decayed;
  p.w = p.w - lr * p.m;
}
void plain_step(const zero::Lion& r, double lr, double decay, int /*t*/, const Tensor& g, Whole& p) {
  p.w = p.w * (1 - lr * decay) - lr * (r.beta1 * p.m + (1 - r.beta1) * g).sign();
  p.m = r.beta2 * p.m + (1 - r.beta2) * g;
}
void plain_step(const zero::LAMB& r, double lr, double decay, int t, const Tensor& g, Whole& p) {
  p.decay_moments(g, r.beta1, r.beta2);
  const Tensor u = adam_direction(p, r.beta1, r.beta2, r.eps, t) + decay * p.w;
  const double w_norm = p.w.norm().item<double>(), u_norm = u.norm().item<double>();
  const double ratio = w_norm > 0 && u_norm > 0 ? std::clamp(w_norm / u_norm, r.min_coeff, r.max_coeff) : 1;
  p.w = p.w - lr * ratio * u;
}

void plain_step(const zero::LARS& r, double lr, double decay, int t, const Tensor& g, Whole& p) {
  Tensor step = g;
  if (p.w.dim() > 1) {
    const double w_norm = p.w.norm().item<double>();
    const double divisor = g.norm().item<double>() + decay * w_norm + r.eps;
    step = (g + decay * p.w) * (w_norm > 0 && divisor > 0 ? r.trust_coefficient * w_norm / divisor : 1);
  }
  p.m = t == 1 ? step : r.momentum * p.m + step;
  p.w = p.w - lr * p.m;
}
void plain_step(const zero::Adagrad& r, double lr, double decay, int t, const Tensor& g, Whole& p) {
  const Tensor decayed = g + decay * p.w;
  p.v = p.v + decayed * decayed;
  if (t == 1) p.v = p.v + r.initial_accumulator_value;
  p.w = p.w - lr / (1 + r.lr_decay * (t - 1)) * decayed / (p.v.sqrt() + r.eps);
}

Tensor nearly_orthogonal(const Tensor& matrix) {
  Tensor x = matrix.size(0) > matrix.size(1) ? matrix.t() : matrix;
  x = x / x.norm().clamp_min(1e-7);
  for (int i = 0; i < 5; ++i) {
    const Tensor gram = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram.mm(gram)).mm(x);
  }
  return matrix.size(0) > matrix.size(1) ? x.t() : x;
}
void plain_step(const zero::Muon& r, double lr, double decay, int t, const Tensor& g, Whole& p) {
  if (p.w.dim() != 2) {
    p.decay_moments(g, r.beta1, r.beta2);
    const double rate = lr * r.adamw_lr_scale;
    p.w = p.w * (1 - rate * decay) - rate * adam_direction(p, r.beta1, r.beta2, r.eps, t);
    return;
  }
  p.m = r.momentum * p.m + (1 - r.momentum) * g;
  const Tensor direction = r.nesterov ? r.momentum * p.m + (1 - r.momentum) * g : p.m;
  const double factor =
      std::sqrt(std::max(1.0, static_cast<double>(p.w.size(0)) / static_cast<double>(p.w.size(1))));
  p.w = p.w * (1 - lr * decay) - lr * factor * nearly_orthogonal(direction);
}

void plain_step(const zero::Adafactor& r, double lr, double decay, int t, const Tensor& g, Whole& p) {
  const double rate =
      std::min(lr, 1 / std::sqrt(t)) * std::max(r.min_rms, p.w.square().mean().sqrt().item<double>());
  const double beta2 = 1 - std::pow(t, -r.decay_rate);
  // Means are linear: those of a mean of all squares are the means of all steps' rows and columns.
  p.v = beta2 * p.v + (1 - beta2) * (g * g + r.eps);
  Tensor v = p.v;
  if (p.w.dim() > 1) {
    const Tensor rows = p.v.mean(-1, true), columns = p.v.mean(-2, true);
    v = rows * columns / rows.mean(-2, true);
  }
  Tensor u = g / v.sqrt();
  u = rate * u / std::max(1.0, u.square().mean().sqrt().item<double>() / r.clip_threshold);
  p.m = r.beta1 * p.m + (1 - r.beta1) * u;
  p.w = p.w * (1 - decay * rate) - p.m;
}

// Values other than the defaults, so that each of them counts.
template <class Rule>
Rule tried(Rule rule) {
  rule.lr = 0.01;
  rule.weight_decay = 0.1;
  if constexpr (requires { rule.beta2; }) rule.beta1 = 0.8, rule.beta2 = 0.97;
  if constexpr (requires { rule.min_rms; }) rule.beta1 = 0.8, rule.eps = 1e-10, rule.clip_threshold = 0.7;
  if constexpr (requires { rule.momentum; }) rule.momentum = 0.9;
  if constexpr (requires { rule.dampening; }) rule.dampening = 0.2;
  if constexpr (requires { rule.trust_coefficient; }) rule.trust_coefficient = 0.05;
  if constexpr (requires { rule.lr_decay; }) rule.lr_decay = 0.1, rule.initial_accumulator_value = 0.1;
  if constexpr (requires { rule.max_coeff; }) rule.max_coeff = 4, rule.min_coeff = 0.25;
  return rule;
}

const std::vector<zero::ParameterGroup> kGroups{{.pattern = "*.bias", .lr_scale = 0.5, .weight_decay = 0.02}};

template <class Rule>
std::map<std::string, Tensor> plain_run(const Rule& rule, int micro_batches) {
  torch::manual_seed(7);
  SmallNet model;
  std::map<std::string, Whole> whole;
  for (const auto& item : model->named_parameters()) {
    const Tensor w = item.value().detach().to(torch::kDouble);
    whole[item.key()] = {w, torch::zeros_like(w), torch::zeros_like(w)};
  }
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = batch_of(step, kMicro * micro_batches);
    model->zero_grad();
    for (int i = 0; i < micro_batches; ++i) {
      const Batch rows = batch.rows(i * kMicro, kMicro);
      (model->loss(rows.tokens, rows.targets) / micro_batches).backward();
    }
    torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) {
      const bool bias = item.key().ends_with(".bias");
      Whole& parameter = whole[item.key()];
      plain_step(rule, bias ? rule.lr * 0.5 : rule.lr, bias ? 0.02 : rule.weight_decay, step + 1,
                 item.value().grad().to(torch::kDouble), parameter);
      item.value().copy_(parameter.w);
    }
  }
  std::map<std::string, Tensor> result;
  for (const auto& [name, parameter] : whole) result[name] = parameter.w;
  return result;
}

template <class Rule>
std::map<std::string, Tensor> engine_run(const Rule& rule, const zero::Mesh& mesh,
                                         zero::EngineOptions options) {
  torch::manual_seed(7);
  SmallNet model;
  options.groups = kGroups;
  options.reduce_bucket_numel = 500;
  options.group_numel = 200;
  zero::Engine engine(*model, rule, options, mesh);
  for (int step = 0; step < kSteps; ++step) {
    const Batch rows = batch_of(step, kMicro * mesh.size()).rows(mesh.rank() * kMicro, kMicro);
    engine.backward(engine.forward([&] { return model->loss(rows.tokens, rows.targets); }));
    EXPECT_FALSE(engine.step().skipped());
  }
  std::map<std::string, Tensor> result;
  for (const std::string& name : engine.parameter_names()) result[name] = engine.full_parameter(name);
  return result;
}

// Elements of a sign may fall on either side of 0 by rounding: of such a rule a few may differ.
void expect_near(const std::map<std::string, Tensor>& actual, const std::map<std::string, Tensor>& expected,
                 double may_differ, const std::string& what, double tolerance = 2e-5) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, values] : expected) {
    const Tensor far =
        (actual.at(name).to(torch::kDouble) - values).abs() > tolerance * values.abs().clamp_min(0.1);
    EXPECT_LE(far.sum().item<double>(), may_differ * static_cast<double>(values.numel()))
        << what << ", " << name;
  }
}

void expect_same_bits(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b,
                      const std::string& what) {
  for (const auto& [name, values] : a) EXPECT_TRUE(torch::equal(values, b.at(name))) << what << ", " << name;
}

class OptimizerRules : public ::testing::TestWithParam<int> {};

TEST_P(OptimizerRules, FollowTheirFormulasOnWholeParametersAtEveryStage) {
  const int ranks = GetParam();
  run_ranks(ranks, [ranks](const zero::Mesh& mesh) {
    zero::for_each_rule([&]<class Default>(const Default& defaults) {
      const Default rule = tried(defaults);
      const std::string name(zero::rule_name(rule));
      const double may_differ = name == "Lion" ? 0.02 : 0;
      const double tolerance = name == "Muon" ? 0.03 : 2e-5;  // its products are bf16
      const auto expected = plain_run(rule, ranks);
      std::vector<std::map<std::string, Tensor>> stages;
      for (int stage = 0; stage <= 3; ++stage) {
        // Apart: stage 0 keeps whole replicas.
        stages.push_back(engine_run(rule, mesh, {.stage = stage, .share_parameters = false}));
        const std::string what = name + " at stage " + std::to_string(stage);
        expect_near(stages.back(), expected, may_differ, what, tolerance);
        expect_same_bits(stages.back(), stages.front(), what);
      }
      expect_same_bits(engine_run(rule, mesh, {.stage = 3}), stages.front(), name + " in common memory");
      // Masters in two halves.
      const auto halves = [&](int stage) {
        return engine_run(rule, mesh,
                          {.stage = stage, .dtype = zero::Dtype::bf16, .share_parameters = false});
      };
      expect_same_bits(halves(3), halves(0), name + " in bf16");
      if (ranks == 4)
        expect_near(engine_run(rule, mesh, {.stage = 3, .shard_group_ranks = 2}), expected, may_differ,
                    name + " in groups of two", tolerance);
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OptimizerRules, ::testing::Values(1, 2, 3, 4));

TEST(Lamb, RatioIsOneWhereANormIsZeroAndKeepsItsBounds) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    // Biases start at 0, so their first step is the rate times an update of ones.
    struct Biased : torch::nn::Module {
      Biased() : bias(register_parameter("bias", torch::zeros({5}))) {}
      Tensor bias;
    };
    for (const double min_coeff : {0.0, 3.0}) {
      Biased model;
      const zero::LAMB rule{.lr = 0.25, .eps = 0, .weight_decay = 0, .max_coeff = 3, .min_coeff = min_coeff};
      zero::Engine engine(model, rule, {.stage = 3}, mesh);
      std::vector<Tensor> values{torch::zeros({5})};
      for (int step = 0; step < 2; ++step) {
        engine.backward(engine.forward([&] { return model.bias.sum(); }));
        engine.step();
        values.push_back(engine.full_parameter("bias"));
      }
      EXPECT_TRUE(torch::allclose(values[1], torch::full({5}, -0.25)));
      // Now |w| / |u| is 0.25, or what the bound makes of it.
      const double ratio = min_coeff > 0 ? 3 : 0.25;
      EXPECT_TRUE(torch::allclose(values[2], torch::full({5}, -0.25 - 0.25 * ratio))) << values[2];
    }
  });
}

}  // namespace

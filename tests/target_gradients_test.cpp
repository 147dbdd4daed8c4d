// The gradient of a negative log likelihood without its matrix: values, and when it must be there after all.
#include "operators/target_gradients.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/nn/functional/loss.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "operators/cpu_operators.h"
#include "seam/dispatch.h"

namespace {
using torch::Tensor;
namespace detail = zero::detail;
namespace F = torch::nn::functional;

constexpr int64_t kSamples = 9, kClasses = 201;

// Which upstream gradients log_softmax's backward got: with memory or without.
class WatchSoftmax {
 public:
  WatchSoftmax() {
    seen() = {};
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&WatchSoftmax::on_operator).needsInputs(true));
  }
  ~WatchSoftmax() { at::removeCallback(handle_); }
  WatchSoftmax(const WatchSoftmax&) = delete;
  WatchSoftmax& operator=(const WatchSoftmax&) = delete;
  struct Seen {
    int matrices = 0, elements = 0;
  };
  static Seen& seen() {
    static Seen counts;
    return counts;
  }

 private:
  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
    if (std::string(function.name()) != "aten::_log_softmax_backward_data") return nullptr;
    const bool has_memory = detail::tag_of(function.inputs()[0].toTensor()) == nullptr;
    ++(has_memory ? seen().matrices : seen().elements);
    return nullptr;
  }
  at::CallbackHandle handle_;
};

using LossOfLogits = std::function<Tensor(const Tensor& logits, const Tensor& targets)>;

struct LogitsAndTargets {
  Tensor logits, targets;
};

LogitsAndTargets some_logits(at::ScalarType dtype = at::kFloat) {
  at::manual_seed(1);
  return {(at::randn({kSamples, kClasses}) * 4).to(dtype), at::randint(0, kClasses, {kSamples})};
}

Tensor gradient_of(const LogitsAndTargets& given, const LossOfLogits& loss, bool elements,
                   const std::vector<Tensor>& upstream = {}) {
  const Tensor logits = given.logits.detach().clone().requires_grad_();
  const detail::InterceptOperators intercept(nullptr, detail::cpu_operators(elements));
  const Tensor value = loss(logits, given.targets);
  if (elements) detail::prepare_target_gradients({value});
  return torch::autograd::grad({value}, {logits}, upstream)[0];
}

double largest_difference(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

Tensor mean_loss(const Tensor& logits, const Tensor& targets) { return F::cross_entropy(logits, targets); }

struct LossCase {
  const char* name;
  LossOfLogits loss;
};

TEST(TargetGradients, HaveTheValuesOfMatrices) {
  const auto ignoring = [](const Tensor& targets, int64_t value) {
    Tensor some = targets.clone();
    some[2] = value;
    some[8] = value;
    return some;
  };
  const std::vector<LossCase> cases{
      {"mean", &mean_loss},
      {"sum",
       [](const Tensor& x, const Tensor& t) {
         return F::cross_entropy(x, t, F::CrossEntropyFuncOptions().reduction(torch::kSum));
       }},
      {"none",
       [](const Tensor& x, const Tensor& t) {
         const Tensor each = F::cross_entropy(x, t, F::CrossEntropyFuncOptions().reduction(torch::kNone));
         return (each * at::arange(1, kSamples + 1)).sum();
       }},
      {"ignored", [&](const Tensor& x, const Tensor& t) { return F::cross_entropy(x, ignoring(t, -100)); }},
      {"ignored 7",
       [&](const Tensor& x, const Tensor& t) {
         return F::cross_entropy(x, ignoring(t, 7), F::CrossEntropyFuncOptions().ignore_index(7));
       }},
      {"of three dims",
       [](const Tensor& x, const Tensor& t) {
         return at::nll_loss(at::log_softmax(x.view({3, 3, kClasses}).flatten(0, 1), -1), t) * 3;
       }},
      {"two losses",
       [](const Tensor& x, const Tensor& t) { return mean_loss(x, t) + mean_loss(x * 2, t.flip(0)); }},
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const LossCase& of : cases) {
      const LogitsAndTargets given = some_logits(dtype);
      const Tensor wanted = gradient_of({given.logits.to(at::kDouble), given.targets}, of.loss, false);
      const WatchSoftmax watch;
      const Tensor got = gradient_of(given, of.loss, true);
      EXPECT_EQ(got.scalar_type(), dtype);
      const double tolerance = (dtype == at::kFloat ? 2e-6 : 2e-2) * wanted.abs().max().item<double>();
      EXPECT_LT(largest_difference(got, wanted), tolerance) << of.name;
      EXPECT_GE(WatchSoftmax::seen().elements, 1) << of.name;
      EXPECT_EQ(WatchSoftmax::seen().matrices, 0) << of.name;
    }
}

TEST(TargetGradients, OfAllTargetsIgnoredAreZero) {
  LogitsAndTargets given = some_logits();
  given.targets.fill_(-100);
  EXPECT_EQ(gradient_of(given, &mean_loss, true).count_nonzero().item<int64_t>(), 0);
}

TEST(TargetGradients, OfIgnoredRowsOfNaNAreNaN) {
  LogitsAndTargets given = some_logits();
  given.targets[2] = -100;
  given.targets[5] = -100;
  given.logits[2].fill_(std::numeric_limits<float>::quiet_NaN());
  const Tensor wanted = gradient_of(given, &mean_loss, false), got = gradient_of(given, &mean_loss, true);
  EXPECT_EQ(wanted.isnan().sum().item<int64_t>(), kClasses);
  EXPECT_TRUE(at::equal(got.isnan(), wanted.isnan()));
  EXPECT_EQ(got[5].count_nonzero().item<int64_t>(), 0);
}

TEST(TargetGradients, AreMatricesWhereSomebodyCouldSeeThem) {
  const LogitsAndTargets given = some_logits();
  Tensor kept, watched;
  const std::vector<LossCase> cases{
      {"used twice",
       [](const Tensor& x, const Tensor& t) {
         const Tensor p = at::log_softmax(x, 1);
         return at::nll_loss(p, t) - p.exp().mul(p).sum();
       }},
      {"two losses of one",
       [](const Tensor& x, const Tensor& t) {
         const Tensor p = at::log_softmax(x, 1);
         return at::nll_loss(p, t) + at::nll_loss(p, t.flip(0));
       }},
      {"retained",
       [&](const Tensor& x, const Tensor& t) {
         kept = at::log_softmax(x, 1);
         kept.retain_grad();
         return at::nll_loss(kept, t);
       }},
      {"watched",
       [&](const Tensor& x, const Tensor& t) {
         const Tensor p = at::log_softmax(x, 1);
         p.register_hook([&](const Tensor& gradient) {
           watched = gradient.clone();
           return gradient * 2;
         });
         return at::nll_loss(p, t);
       }},
      {"of a view",
       [](const Tensor& x, const Tensor& t) {
         return at::nll_loss(at::log_softmax(x, 1).view({9, -1}), t);
       }},
      {"over rows",
       [](const Tensor& x, const Tensor& t) {
         return at::nll_loss(at::log_softmax(x.t().contiguous(), 1).t(), t);
       }},
      {"weighted",
       [](const Tensor& x, const Tensor& t) {
         return F::cross_entropy(x, t,
                                 F::CrossEntropyFuncOptions().weight(at::arange(kClasses).to(at::kFloat)));
       }},
  };
  for (const LossCase& of : cases) {
    const Tensor wanted = gradient_of(given, of.loss, false);
    const WatchSoftmax watch;
    EXPECT_LT(largest_difference(gradient_of(given, of.loss, true), wanted), 1e-6) << of.name;
    EXPECT_EQ(WatchSoftmax::seen().elements, 0) << of.name;
  }
  EXPECT_EQ(kept.grad().count_nonzero().item<int64_t>(), kSamples);
  EXPECT_EQ(watched.count_nonzero().item<int64_t>(), kSamples);
  {
    const torch::autograd::DetectAnomalyGuard anomaly;
    const WatchSoftmax watch;
    gradient_of(given, &mean_loss, true);
    EXPECT_EQ(WatchSoftmax::seen().elements, 0);
  }
}

// log_softmax over dim 0 of a square: its backward is LibTorch's, and needs the matrix.
TEST(TargetGradients, AreWrittenOutForADimThatIsNotTheLast) {
  at::manual_seed(3);
  const LogitsAndTargets given{at::randn({12, 12}), at::randint(0, 12, {12})};
  const LossOfLogits loss = [](const Tensor& x, const Tensor& t) {
    return at::nll_loss(at::log_softmax(x, 0), t, {}, at::Reduction::Sum, 4);
  };
  const Tensor wanted = gradient_of(given, loss, false);
  const WatchSoftmax watch;
  EXPECT_LT(largest_difference(gradient_of(given, loss, true), wanted), 1e-6);
  EXPECT_EQ(WatchSoftmax::seen().elements, 1);
}

TEST(TargetGradients, HoldForThePreparedBackwardOnly) {
  const LogitsAndTargets given = some_logits();
  const Tensor logits = given.logits.clone().requires_grad_();
  const detail::InterceptOperators intercept(nullptr, &detail::run_cpu_operator);
  const Tensor p = at::log_softmax(logits, 1), value = at::nll_loss(p, given.targets);
  const auto gradient = [&](const Tensor& of) {
    return torch::autograd::grad({of}, {logits}, {}, /*retain_graph=*/true)[0];
  };
  WatchSoftmax watch;
  detail::prepare_target_gradients({value});
  const Tensor first = gradient(value), second = gradient(value);
  EXPECT_EQ(WatchSoftmax::seen().elements, 1);
  EXPECT_EQ(WatchSoftmax::seen().matrices, 1);
  EXPECT_LT(largest_difference(first, second), 1e-7);
  // The same loss again, now with another use of the log-probabilities.
  const Tensor both = value + p.sum();
  detail::prepare_target_gradients({both});
  EXPECT_TRUE(at::allclose(gradient(both), second + gradient(p.sum()), 1e-5, 1e-6));
  EXPECT_EQ(WatchSoftmax::seen().elements, 1);
  // A hook of somebody else's on the loss's node is left alone.
  detail::prepare_target_gradients({value});
  p.register_hook([](const Tensor& upstream) { return upstream * 2; });
  detail::prepare_target_gradients({value});
  EXPECT_TRUE(at::allclose(gradient(value), 2 * second, 1e-5, 1e-7));
}

TEST(TargetGradients, LeaveWrongTargetsToLibTorch) {
  const LogitsAndTargets given = some_logits();
  const LossOfLogits loss = [](const Tensor& x, const Tensor& t) {
    const Tensor changed = t.clone(), value = at::nll_loss(at::log_softmax(x, 1), changed);
    {
      const torch::NoGradGuard no_grad;
      changed.data_ptr<int64_t>()[0] = kClasses;
    }
    return value;
  };
  EXPECT_THROW(gradient_of(given, loss, true), c10::Error);
}
}  // namespace

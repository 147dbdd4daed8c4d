// Recomputation against the same forward without it: bits, what is computed again, memory, misuse.
#include "zero/recompute.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/expect_error.h"

namespace zero {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Forward = std::function<Tensor(const Tensor&)>;

/// As recompute(), or the function itself.
Tensor part(bool recomputes, const Forward& fn, const Tensor& x) {
  return recomputes ? recompute(fn, x) : fn(x);
}

Tensor weights(std::initializer_list<int64_t> sizes) {
  return torch::randn(sizes).mul_(0.3).requires_grad_();
}

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (a[i].defined()) {
      EXPECT_TRUE(at::equal(a[i], b[i])) << i;
    }
  }
}

/// Counts the calls of one operator.
class Calls {
 public:
  explicit Calls(std::string name) {
    operator_name() = std::move(name);
    count() = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
      if (call.name() == operator_name()) ++count();
      return std::unique_ptr<at::ObserverContext>();
    }));
  }
  ~Calls() { at::removeCallback(handle_); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  static int& count() {
    static int calls = 0;
    return calls;
  }

 private:
  static std::string& operator_name() {
    static std::string name;
    return name;
  }
  at::CallbackHandle handle_;
};

TEST(Recompute, GivesTheBitsOfAPlainForward) {
  const auto run = [](bool recomputes) {
    torch::manual_seed(1);
    const Tensor x = weights({6, 8}), w = weights({16, 8}), v = weights({8, 16}), shared = weights({8, 8});
    Tensor y = x;
    for (int block = 0; block < 3; ++block)
      y = part(
          recomputes,
          [&](const Tensor& in) {
            const Tensor hidden = torch::dropout(torch::gelu(torch::linear(in, w)), 0.4, /*train=*/true);
            return in + torch::linear(torch::linear(hidden, v), shared);
          },
          y);
    const Tensor loss = (torch::linear(y, shared) * torch::rand({6, 8})).sum();
    loss.backward();
    return Tensors{loss.detach(), x.grad(), w.grad(), v.grad(), shared.grad(), torch::rand({3})};
  };
  expect_equal(run(true), run(false));
}

TEST(Recompute, ParametersGetGradientsWhereNoInputNeedsOne) {
  torch::manual_seed(1);
  const Tensor x = torch::randn({4, 8}), w = weights({8, 8});
  const auto gradient_of = [&](bool recomputes) {
    const Tensor y = part(
        recomputes, [&](const Tensor& in) { return torch::tanh(torch::linear(in, w)); }, x);
    return torch::autograd::grad({y.sum()}, {w});
  };
  expect_equal(gradient_of(true), gradient_of(false));
}

TEST(Recompute, SeveralInputsAndOutputsOneOfThemUndefined) {
  torch::manual_seed(1);
  const Tensor a = weights({4, 8}), b = torch::randn({4, 8}), c = weights({4, 8});
  const auto fn = [](const Tensors& in) -> Tensors {
    EXPECT_FALSE(in[2].defined());
    EXPECT_FALSE(in[1].requires_grad());
    EXPECT_TRUE(in[0].requires_grad());
    return {(in[0] * in[1]).tanh(), in[3].exp() * in[0], in[1]};
  };
  const auto run = [&](bool recomputes) {
    const Tensors inputs{a, b, Tensor(), c};
    const Tensors out = recomputes ? recompute(fn, inputs) : fn(inputs);
    return torch::autograd::grad({out[0].sum() + (out[1] * out[2]).sum()}, {a, c});
  };
  expect_equal(run(true), run(false));
}

TEST(Recompute, Nested) {
  const auto run = [](bool outer, bool middle, bool inner) {
    torch::manual_seed(2);
    const Tensor x = weights({4, 8}), w = weights({8, 8});
    const auto layer = [&](const Tensor& in) {
      return torch::dropout(torch::tanh(torch::linear(in, w)), 0.3, true);
    };
    const auto two = [&](const Tensor& in) { return part(inner, layer, part(inner, layer, in)) * 2; };
    const auto four = [&](const Tensor& in) { return part(middle, two, part(middle, two, in).exp()); };
    const Tensor y = part(outer, four, part(outer, four, x));
    y.square().sum().backward();
    return Tensors{y.detach(), x.grad(), w.grad()};
  };
  const Tensors wanted = run(false, false, false);
  for (int way = 1; way < 8; ++way) expect_equal(run(way & 1, way & 2, way & 4), wanted);
}

TEST(Recompute, StopsAtTheLastTensorThatIsNeeded) {
  torch::manual_seed(1);
  const Tensor x = weights({4, 8}), v = weights({8, 8});
  const Tensor y = recompute([&](const Tensor& in) { return torch::mm(in.tanh(), v).sign(); }, x);
  const Calls calls("aten::sign");
  y.sum().backward();
  EXPECT_EQ(Calls::count(), 0);
  const Tensor z = recompute([&](const Tensor& in) { return in.tanh().sign().exp(); }, x);
  EXPECT_EQ(Calls::count(), 1);
  z.sum().backward();
  EXPECT_EQ(Calls::count(), 2);  // exp's result is needed
}

TEST(Recompute, OnceForEachBackward) {
  torch::manual_seed(1);
  const Tensor x = weights({4, 8});
  int calls = 0;
  const Tensor y = recompute(
      [&](const Tensor& in) {
        ++calls;
        return in.tanh().exp().sin();
      },
      x);
  EXPECT_EQ(calls, 1);
  const Tensors first = torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true);
  EXPECT_EQ(calls, 2);
  expect_equal(torch::autograd::grad({y.sum()}, {x}), first);
  EXPECT_EQ(calls, 3);
}

TEST(Recompute, SecondDerivatives) {
  torch::manual_seed(1);
  const Tensor x = weights({4, 8}), w = weights({8, 8});
  const auto run = [&](bool recomputes) {
    const Tensor y = part(
        recomputes, [&](const Tensor& in) { return torch::tanh(torch::mm(in, w)).exp(); }, x);
    const Tensors first = torch::autograd::grad({y.sum()}, {x, w}, {}, true, /*create_graph=*/true);
    const Tensors second = torch::autograd::grad({first[0].square().sum() + first[1].exp().sum()}, {x, w});
    return Tensors{first[0].detach(), first[1].detach(), second[0], second[1]};
  };
  expect_equal(run(true), run(false));
}

TEST(Recompute, ABackwardInsideTheFunction) {
  torch::manual_seed(1);
  const Tensor x = weights({4, 8});
  const auto run = [&](bool recomputes) {
    const auto fn = [](const Tensor& in) {
      const Tensor slope = torch::autograd::grad({in.tanh().sum()}, {in}, {}, true, /*create_graph=*/true)[0];
      return slope * in.exp();
    };
    return torch::autograd::grad({part(recomputes, fn, x).sum()}, {x});
  };
  expect_equal(run(true), run(false));
}

TEST(Recompute, WithoutGradientsItOnlyCalls) {
  const Tensor x = torch::randn({4}).requires_grad_();
  int calls = 0;
  const auto fn = [&](const Tensor& in) {
    ++calls;
    return in.tanh();
  };
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(recompute(fn, x).requires_grad());
  EXPECT_EQ(calls, 1);
}

// The function's tensors die with its forward, and its inputs with the graph.
TEST(Recompute, KeepsTheInputsAlone) {
  const Tensor x = weights({64});
  c10::weak_intrusive_ptr<c10::StorageImpl> middle{c10::intrusive_ptr<c10::StorageImpl>()},
      input{c10::intrusive_ptr<c10::StorageImpl>()};
  const auto watch = [](const Tensor& t) {
    return c10::weak_intrusive_ptr<c10::StorageImpl>(t.storage().getWeakStorageImpl());
  };
  Tensor y;
  {
    Tensor first = x * 2;
    input = watch(first);
    y = recompute(
        [&](const Tensor& in) {
          const Tensor t = in.tanh();
          if (middle.expired()) middle = watch(t);
          return t.exp();
        },
        first);
  }
  EXPECT_TRUE(middle.expired());
  EXPECT_FALSE(input.expired());
  y.sum().backward();
  EXPECT_TRUE(middle.expired());
  EXPECT_TRUE(input.expired());
}

TEST(Recompute, WithoutRandomStateTheNextNumbersAreDrawn) {
  torch::manual_seed(1);
  const Tensor x = weights({64});
  Tensors drawn;
  const Tensor y = recompute(
      [&](const Tensor& in) {
        drawn.push_back(torch::rand({64}));
        return in.tanh() * drawn.back();
      },
      x, {.preserve_random_state = false});
  y.sum().backward();
  ASSERT_EQ(drawn.size(), 2);
  EXPECT_FALSE(at::equal(drawn[0], drawn[1]));
}

TEST(Recompute, AutocastIsThatOfTheForward) {
  torch::manual_seed(1);
  const Tensor x = weights({4, 8}), w = weights({8, 8});
  const auto run = [&](bool recomputes) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor y = part(
        recomputes, [&](const Tensor& in) { return torch::tanh(torch::mm(in, w)); }, x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    const Tensors gradients = torch::autograd::grad({y.to(at::kFloat).sum()}, {x, w});
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return gradients;
  };
  expect_equal(run(true), run(false));
}

// Every error names the part.
struct Misuse {
  Tensor x = torch::randn({4, 8}).requires_grad_(), w = torch::randn({8, 8}).requires_grad_();
  int calls = 0;
  Tensor run(const Forward& fn) {
    return recompute(
               [this, fn](const Tensor& in) {
                 ++calls;
                 return fn(in);
               },
               x * 1, {.name = "block 3"})
        .sum();
  }
};

TEST(Recompute, OtherShapesAreNamed) {
  Misuse use;
  const Tensor loss =
      use.run([&](const Tensor& in) { return in.narrow(0, 0, use.calls == 1 ? 4 : 3).tanh(); });
  EXPECT_ERROR(loss.backward(), Usage,
               "block 3: a tensor that backward needs was Float [4, 8] on cpu and is Float [3, 8] on cpu");
}

TEST(Recompute, FewerTensorsAreNamed) {
  Misuse use;
  const Tensor loss = use.run([&](const Tensor& in) { return use.calls == 1 ? in.tanh().exp() : in.tanh(); });
  EXPECT_ERROR(loss.backward(), Usage,
               "block 3: backward needs tensor 2 of those that the function saves, and it saved 1");
}

TEST(Recompute, InputsWrittenInPlaceAreNamed) {
  Misuse use;
  const Tensor x = use.x * 1;
  const Tensor loss = recompute([](const Tensor& in) { return in.tanh(); }, x, {.name = "block 3"}).sum();
  {
    const torch::NoGradGuard no_grad;
    x.mul_(2);
  }
  EXPECT_ERROR(loss.backward(), Usage, "block 3: an input was written in place");
}

TEST(Recompute, ParametersWrittenInPlaceAreNamed) {
  Misuse use;
  const Tensor loss = use.run([&](const Tensor& in) { return torch::mm(in, use.w).tanh(); });
  {
    const torch::NoGradGuard no_grad;
    use.w.mul_(2);
  }
  EXPECT_ERROR(loss.backward(), Usage, "block 3: a parameter Float [8, 8]");
}

TEST(Recompute, TensorsWrittenInPlaceAfterTheirUseAreNamed) {
  Misuse use;
  const Tensor loss = use.run([&](const Tensor& in) {
    Tensor y = in.tanh();
    y.mul_(2);
    return y.exp();
  });
  EXPECT_ERROR(loss.backward(), Usage, "was written in place after it was used");
}

TEST(Recompute, WhatTheFunctionThrowsInBackwardIsNamed) {
  Misuse use;
  const Tensor loss = use.run([&](const Tensor& in) {
    if (use.calls == 2) throw std::runtime_error("no more data");
    return in.tanh();
  });
  EXPECT_ERROR(loss.backward(), Usage,
               "block 3: the function threw when backward called it again: no more data");
  EXPECT_THROW(use.run([](const Tensor&) -> Tensor { throw std::out_of_range("of the forward"); }),
               std::out_of_range);
  EXPECT_ERROR(recompute(Forward(), use.x), Usage, "recompute: there is no function");
}

}  // namespace
}  // namespace zero

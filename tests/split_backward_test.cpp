// A backward in two halves has the bits of a whole one, computes nothing twice, and lets go of what is done.
#include "stages/split_backward.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

#include "support/small_net.h"
#include "zero/recompute.h"

namespace {

using zero::detail::SplitBackward;
using zero::testing::Block;

std::vector<at::Tensor> gradients_of(torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (at::Tensor& parameter : module.parameters()) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    parameter.mutable_grad().reset();
  }
  return gradients;
}

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << i;
    if (found[i].defined()) {
      EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
    }
  }
}

/// Both ways through `forward`, from a leaf of these sizes.
void expect_halves_equal_whole(torch::nn::Module& module,
                               const std::function<at::Tensor(at::Tensor)>& forward, at::IntArrayRef sizes) {
  torch::manual_seed(5);
  const at::Tensor x = torch::randn(sizes), gradient = torch::randn_like(forward(x));
  const at::Tensor whole = x.clone().requires_grad_(), half = x.clone().requires_grad_();
  forward(whole).backward(gradient);
  const auto expected = gradients_of(module);
  SplitBackward split({forward(half)}, {gradient}, {half});
  for (const at::Tensor& parameter : module.parameters()) EXPECT_FALSE(parameter.grad().defined());
  expect_equal(split.input_gradients(), {whole.grad()});
  split.run_weights();
  expect_equal(gradients_of(module), expected);
}

TEST(SplitBackward, OfBlocksHasTheBitsOfAWholeOne) {
  torch::manual_seed(1);
  torch::nn::Sequential net(Block(12), Block(12), torch::nn::Linear(12, 5));
  expect_halves_equal_whole(*net, [&](const at::Tensor& x) { return net->forward(x); }, {3, 7, 12});
}

TEST(SplitBackward, OfAWeightWithSeveralUsesHasTheBitsOfAWholeOne) {
  torch::manual_seed(2);
  torch::nn::Linear layer(9, 9);
  const auto forward = [&](const at::Tensor& x) {
    return layer(torch::tanh(layer(x))) + torch::matmul(x, layer->weight * 0.5);
  };
  expect_halves_equal_whole(*layer, forward, {4, 9});
}

// Of a custom function everything comes at once, and is kept.
struct Scale : torch::autograd::Function<Scale> {
  static inline int backwards = 0;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    ++backwards;
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum(0)};
  }
};

TEST(SplitBackward, RunsACustomFunctionOnce) {
  torch::nn::Linear layer(6, 6);
  const auto forward = [&](const at::Tensor& x) { return layer(Scale::apply(layer(x), layer->bias)); };
  Scale::backwards = 0;
  expect_halves_equal_whole(*layer, forward, {5, 6});
  EXPECT_EQ(Scale::backwards, 2);  // once each way
}

// Its weights' gradients come with its input's.
TEST(SplitBackward, OfRecomputedPartsHasTheBitsOfAWholeOne) {
  torch::nn::Sequential net(Block(8), Block(8));
  const auto forward = [&](const at::Tensor& x) {
    return zero::recompute([&](const at::Tensor& in) { return net->forward(in); }, x);
  };
  torch::manual_seed(6);
  const at::Tensor x = torch::randn({2, 8}), gradient = torch::randn({2, 8});
  const at::Tensor whole = x.clone().requires_grad_(), half = x.clone().requires_grad_();
  forward(whole).backward(gradient);
  const auto expected = gradients_of(*net);
  SplitBackward split({forward(half)}, {gradient}, {half});
  split.run_weights();
  expect_equal(split.input_gradients(), {whole.grad()});
  expect_equal(gradients_of(*net), expected);
}

TEST(SplitBackward, WithoutInputsLeavesAllToTheSecondHalf) {
  torch::nn::Embedding table(11, 4);
  const at::Tensor ids = torch::tensor({1, 3, 3, 7}), gradient = torch::ones({4, 4});
  SplitBackward split({table(ids)}, {gradient}, {});
  EXPECT_TRUE(split.input_gradients().empty());
  EXPECT_FALSE(table->weight.grad().defined());
  split.run_weights();
  EXPECT_EQ(table->weight.grad().sum().item<float>(), 16);
}

// As a stage without layers has it: no graph keeps the leaf's node alive. A freed node often comes back where
// it was, unless something of its size has taken the place: graphs of many sizes.
TEST(SplitBackward, OfAnInputThatIsAnOutputGivesItsGradient) {
  for (int size = 1; size < 64; ++size) {
    std::vector<at::Tensor> inputs;
    for (int i = 0; i < size; ++i) inputs.push_back(torch::rand({2}).requires_grad_());
    const at::Tensor gradient = torch::rand({2});
    at::Tensor sum = inputs.back() * 1;
    for (int i = 1; i < size; ++i) sum = sum + inputs[static_cast<size_t>(i)];
    SplitBackward split({sum, inputs.front()}, {gradient, gradient}, inputs);
    for (int i = 0; i < size; ++i) {
      const at::Tensor& found = split.input_gradients()[static_cast<size_t>(i)];
      ASSERT_TRUE(found.defined()) << i << " of " << size;
      EXPECT_TRUE(at::equal(found, i + 1 == size ? gradient * 2 : gradient)) << i;
    }
  }
}

// Several outputs, one of them without a way to the input, and an input that nothing uses.
TEST(SplitBackward, OfSeveralOutputsHasTheBitsOfAWholeOne) {
  torch::manual_seed(3);
  torch::nn::Linear one(4, 4), two(4, 4);
  const at::Tensor x = torch::randn({3, 4}).requires_grad_(), unused = torch::randn({2}).requires_grad_();
  const at::Tensor constant = torch::randn({3, 4});
  const auto outputs = [&] { return std::vector<at::Tensor>{one(x), two(constant), two(one(x))}; };
  const std::vector<at::Tensor> gradients{torch::randn({3, 4}), torch::randn({3, 4}), torch::randn({3, 4})};
  torch::autograd::backward(outputs(), gradients);
  const at::Tensor expected = x.grad().clone();
  const auto expected_one = gradients_of(*one), expected_two = gradients_of(*two);
  SplitBackward split(outputs(), gradients, {x, unused});
  split.run_weights();
  EXPECT_TRUE(at::equal(split.input_gradients()[0], expected));
  EXPECT_FALSE(split.input_gradients()[1].defined());
  expect_equal(gradients_of(*one), expected_one);
  expect_equal(gradients_of(*two), expected_two);
}

// What the second half does not need is let go of by the first: here what gelu keeps between two layers.
TEST(SplitBackward, LetsGoOfWhatIsDone) {
  torch::nn::Linear below(64, 64), above(64, 64);
  const at::Tensor x = torch::randn({8, 64}).requires_grad_();
  at::Tensor hidden = below(x);
  const auto kept = hidden.storage().getWeakStorageImpl();
  at::Tensor y = above(torch::gelu(hidden));
  hidden.reset();
  EXPECT_FALSE(kept.expired());
  SplitBackward split({y}, {torch::ones_like(y)}, {x});
  EXPECT_TRUE(kept.expired());
  split.run_weights();
  EXPECT_TRUE(below->weight.grad().defined() && above->weight.grad().defined());
}

}  // namespace

// LibTorch's operators and ours in turn, for one micro-batch of 256 tokens of GPT-2 124M, forward and
// backward, all ranks at once: a line of JSON an operator and dtype, `times` how often a step has it. What is
// left of a step are products (gemm.cpp). Run under `zero launch`.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "median.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/cpu_operators.h"
#include "zero/gpt2_shape.h"
#include "zero/mesh.h"

namespace zero::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 256;
constexpr int kRounds = 15;

struct Operator {
  std::string name;
  int64_t times;
  std::function<void()> run;
};

/// The gradients of out = f(inputs) for a gradient that is there already.
std::function<void()> with_backward(std::vector<at::Tensor> inputs, auto f) {
  for (at::Tensor& input : inputs) input.requires_grad_();
  const at::Tensor gradient = at::randn_like(f(inputs).detach());
  return [=] { torch::autograd::grad({f(inputs)}, inputs, {gradient}); };
}

std::vector<Operator> operators_of(const Gpt2Shape& shape, at::ScalarType dtype) {
  const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(dtype); };
  const int64_t heads = shape.heads, width = shape.width / heads;
  const auto part = [&] { return random({1, heads, kTokens, width}); };
  const at::Tensor targets = at::randint(shape.vocab_size, {kTokens}, at::kLong);
  return {{"GELU", shape.layers,
           with_backward({random({kTokens, 4 * shape.width})},
                         [](const auto& in) { return at::gelu(in[0], "tanh"); })},
          {"causal attention", shape.layers,
           with_backward({part(), part(), part()},
                         [](const auto& in) {
                           return at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, true);
                         })},
          {"cross-entropy over the vocabulary", 1,
           with_backward({random({kTokens, shape.vocab_size})},
                         [=](const auto& in) { return at::cross_entropy_loss(in[0], targets); })}};
}

double milliseconds(const std::function<void()>& run, const Group& all) {
  all.barrier("operator");
  const auto began = Clock::now();
  run();
  return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
}

void report(const Operator& op, at::ScalarType dtype, const Group& all) {
  std::vector<double> theirs, ours;
  for (int round = 0; round <= kRounds; ++round) {
    theirs.push_back(milliseconds(op.run, all));
    const CpuOperators fast;
    ours.push_back(milliseconds(op.run, all));
  }
  for (auto* times : {&theirs, &ours}) times->erase(times->begin());  // the first finds cold code
  if (all.rank() != 0) return;
  const nlohmann::ordered_json row = {{"operator", op.name},
                                      {"dtype", dtype == at::kFloat ? "fp32" : "bf16"},
                                      {"times", op.times},
                                      {"libtorch_ms", median(theirs)},
                                      {"ours_ms", median(ours)}};
  std::cout << row.dump() << std::endl;
}

}  // namespace
}  // namespace zero::bench

int main() {
  const zero::Rendezvous job = zero::rendezvous_from_environment();
  zero::prepare_compute_threads(1);
  zero::use_training_allocator();
  const zero::Mesh mesh = zero::Mesh::join(job, {});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const auto& op : zero::bench::operators_of(zero::gpt2_shape("gpt2"), dtype))
      zero::bench::report(op, dtype, mesh.world());
}

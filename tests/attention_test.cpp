// Our attention against the formula in fp64, forward and backward, with the loops of every kind of processor.
#include "operators/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "operators/attention/kernels.h"

namespace zero {
namespace {

using at::Tensor;

struct Case {
  int64_t queries, keys, width;
  bool causal;
};

double relative_error(const Tensor& got, const Tensor& wanted) {
  const Tensor exact = wanted.to(at::kDouble);
  return ((got.to(at::kDouble) - exact).norm() / (exact.norm() + 1e-12)).item<double>();
}

struct Outcome {
  Tensor out, log_sums, of_queries, of_keys, of_values;
};

Outcome formula(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& upstream,
                bool causal, double scale) {
  const auto leaf = [](const Tensor& x) { return x.detach().to(at::kDouble).requires_grad_(); };
  const Tensor q = leaf(queries), k = leaf(keys), v = leaf(values);
  Tensor scores = at::matmul(q, k.transpose(-1, -2)) * scale;
  const Tensor seen = at::ones({queries.size(2), keys.size(2)}, at::kBool).tril();
  if (causal) scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  const Tensor out = at::matmul(scores.softmax(-1), v);
  out.backward(upstream.to(at::kDouble));
  return {out.detach(), scores.logsumexp(-1).detach(), q.grad(), k.grad(), v.grad()};
}

Outcome ours(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& upstream,
             bool causal, double scale) {
  auto [out, log_sums] = detail::fast_attention(queries, keys, values, causal, scale);
  auto [of_queries, of_keys, of_values] =
      detail::fast_attention_backward(upstream, queries, keys, values, out, log_sums, causal, scale);
  return {out, log_sums, of_queries, of_keys, of_values};
}

void expect_near(const Outcome& got, const Outcome& wanted, double tolerance, const std::string& what) {
  EXPECT_LT(relative_error(got.out, wanted.out), tolerance) << what;
  EXPECT_LT(relative_error(got.log_sums, wanted.log_sums), 1e-6) << what;
  EXPECT_LT(relative_error(got.of_queries, wanted.of_queries), tolerance) << what;
  EXPECT_LT(relative_error(got.of_keys, wanted.of_keys), tolerance) << what;
  EXPECT_LT(relative_error(got.of_values, wanted.of_values), tolerance) << what;
}

// Heads side by side in a token, as a projection of all three leaves them.
Tensor heads_of(const Tensor& projection, int64_t third, int64_t width) {
  const int64_t batch = projection.size(0), length = projection.size(1);
  return projection.narrow(2, third * projection.size(2) / 3, projection.size(2) / 3)
      .view({batch, length, -1, width})
      .transpose(1, 2);
}

TEST(Attention, EqualsTheFormula) {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const Case& c : {Case{1, 1, 1, true},
                          {7, 7, 20, true},
                          {33, 33, 64, true},
                          {70, 70, 80, false},
                          {100, 100, 64, true},
                          {5, 67, 32, false},
                          {40, 9, 16, true},
                          {9, 40, 16, true},
                          {130, 130, 128, true},
                          {320, 320, 64, true},
                          {64, 224, 96, false}}) {
      const int64_t batch = 2, heads = 3;
      const Tensor both = at::randn({batch, c.queries, 3 * heads * c.width}).to(dtype),
                   other = at::randn({batch, c.keys, 3 * heads * c.width}).to(dtype);
      const Tensor queries = heads_of(both, 0, c.width), keys = heads_of(other, 1, c.width),
                   values = heads_of(other, 2, c.width), upstream = at::randn_like(queries);
      EXPECT_EQ(detail::has_fast_attention(queries, keys, values), c.queries >= 16);
      const double scale = 1 / std::sqrt(static_cast<double>(c.width));
      const std::string what = std::to_string(c.queries) + " by " + std::to_string(c.keys) + ", width " +
                               std::to_string(c.width) + (c.causal ? ", causal" : "");
      const Outcome got = ours(queries, keys, values, upstream, c.causal, scale);
      EXPECT_EQ(got.out.scalar_type(), dtype);
      EXPECT_TRUE(got.out.transpose(1, 2).is_contiguous());
      EXPECT_TRUE(got.of_keys.transpose(1, 2).is_contiguous());
      expect_near(got, formula(queries, keys, values, upstream, c.causal, scale),
                  dtype == at::kFloat ? 2e-6 : 5e-3, what);
    }
}

// One head through the loops of each kind, called as they are.
TEST(Attention, EveryKindOfProcessor) {
  at::manual_seed(6);
  // Blocks in part and whole.
  for (const auto& [length, width, half] :
       {std::tuple<int64_t, int64_t, bool>{45, 24, false}, {45, 24, true}, {96, 64, false}, {96, 64, true}}) {
    const auto dtype = half ? at::kBFloat16 : at::kFloat;
    const auto matrix = [&, length = length, width = width] { return at::randn({length, width}).to(dtype); };
    const Tensor q = matrix(), k = matrix(), v = matrix(), upstream = matrix();
    const auto head = [](const Tensor& x) { return x.unsqueeze(0).unsqueeze(0); };
    const Outcome wanted = formula(head(q), head(k), head(v), head(upstream), true, 0.3);
    const attention::Shape shape{length, length, width, true, half, 0.3F};
    const auto rows = [](const Tensor& x) { return attention::Rows{x.data_ptr(), x.stride(0)}; };
    const auto rows_to = [](const Tensor& x) { return attention::WritableRows{x.data_ptr(), x.stride(0)}; };
    ASSERT_GE(attention::available_kernels().size(), 1U);
    for (const attention::Kernels* kernels : attention::available_kernels()) {
      const Tensor out = at::empty_like(q), log_sums = at::empty({length}), of_q = at::empty_like(q),
                   of_k = at::empty_like(q), of_v = at::empty_like(q);
      // What was in the scratch does not matter, and what is behind it stays.
      const int64_t numel =
          std::max(attention::forward_scratch_numel(shape), attention::backward_scratch_numel(shape));
      const Tensor scratch = at::full({numel + 16}, std::nan(""), at::kFloat);
      scratch.narrow(0, numel, 16).fill_(7);
      kernels->forward(shape, rows(q), rows(k), rows(v), rows_to(out), log_sums.data_ptr<float>(),
                       scratch.data_ptr<float>());
      scratch.narrow(0, 0, numel).fill_(std::nan(""));
      kernels->backward(shape, rows(q), rows(k), rows(v), rows(out), rows(upstream),
                        log_sums.data_ptr<float>(), {rows_to(of_q), rows_to(of_k), rows_to(of_v)},
                        scratch.data_ptr<float>());
      expect_near({head(out), head(log_sums.unsqueeze(1)).squeeze(3), head(of_q), head(of_k), head(of_v)},
                  wanted, half ? 5e-3 : 2e-6, std::string(kernels->name));
      EXPECT_TRUE(at::equal(scratch.narrow(0, numel, 16), at::full({16}, 7.0F))) << kernels->name;
    }
  }
}

TEST(Attention, LargeScoresAndNaNs) {
  at::manual_seed(7);
  // Scores of thousands, exact in fp32, two and two nearly the same: so weights are neither 0 nor 1.
  const Tensor q = at::full({1, 1, 4, 16}, 64.0F), k = at::randint(-3, 4, {1, 1, 4, 16}).to(at::kFloat) * 64,
               v = at::randn({1, 1, 4, 16});
  for (const int row : {1, 3}) k[0][0][row].copy_(k[0][0][row - 1].roll(1)), k[0][0][row][0] += 1.0 / 64;
  const Tensor upstream = at::ones_like(q);
  expect_near(ours(q, k, v, upstream, true, 1), formula(q, k, v, upstream, true, 1), 1e-3, "large");
  Tensor broken = v.clone();
  broken[0][0][1].fill_(std::nan(""));
  const Tensor out = std::get<0>(detail::fast_attention(q, k, broken, true, 1));
  EXPECT_TRUE(out[0][0][3].isnan().all().item<bool>());
}

TEST(Attention, WhatItDoesNotTake) {
  const Tensor x = at::randn({2, 3, 20, 16});
  EXPECT_TRUE(detail::has_fast_attention(x, x, x));
  EXPECT_FALSE(detail::has_fast_attention(x.to(at::kDouble), x.to(at::kDouble), x.to(at::kDouble)));
  EXPECT_FALSE(detail::has_fast_attention(x, x.to(at::kBFloat16), x));
  EXPECT_FALSE(detail::has_fast_attention(x.transpose(2, 3), x.transpose(2, 3), x.transpose(2, 3)));
  EXPECT_FALSE(detail::has_fast_attention(x, x.narrow(1, 0, 1), x.narrow(1, 0, 1)));
  EXPECT_FALSE(detail::has_fast_attention(x, x, x.narrow(2, 0, 4)));
  EXPECT_FALSE(detail::has_fast_attention(x.narrow(2, 0, 0), x, x));
  EXPECT_FALSE(detail::has_fast_attention(x.narrow(2, 0, 1), x, x)) << "a token that is generated";
  const int64_t longest = std::min<int64_t>(attention::best_kernels().longest_half, 5000);  // it may be all
  const Tensor longer = at::empty({1, 1, longest + 1, 16}), half = longer.to(at::kBFloat16);
  EXPECT_TRUE(detail::has_fast_attention(longer, longer, longer));
  const bool any = longest < attention::best_kernels().longest_half;
  EXPECT_EQ(detail::has_fast_attention(half, half, half), any) << "where LibTorch's blocks are large";
  const Tensor fits = half.narrow(2, 0, longest);
  EXPECT_TRUE(detail::has_fast_attention(fits, fits, fits));
  EXPECT_EQ(detail::has_fast_attention(fits, half, half), any);
}

}  // namespace
}  // namespace zero

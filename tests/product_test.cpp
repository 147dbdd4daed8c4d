// Products of bf16 matrices, by tiles and with aligned copies, against exact sums.
#include "operators/product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <random>

#include "operators/product/product.h"

namespace {
using at::Tensor;
using zero::product::Product;
using zero::product::Side;
namespace detail = zero::detail;
namespace product = zero::product;

constexpr int64_t kGuardBytes = 64;
constexpr int8_t kGuard = 0x5a;

/// Small integers: products and sums of them are exact in fp32, so each result has one right rounding.
Tensor integers(at::IntArrayRef sizes) { return at::randint(-3, 4, sizes, at::kBFloat16); }

uint16_t* bits_of(const Tensor& x) { return static_cast<uint16_t*>(x.data_ptr()); }

/// A matrix [rows, k] in memory one way or the other, rows `gap` elements apart.
struct Stored {
  Stored(int64_t rows, int64_t k, bool along_k, int64_t gap)
      : memory(integers({along_k ? rows : k, (along_k ? k : rows) + gap})),
        side{bits_of(memory), memory.size(1), along_k},
        matrix(along_k ? memory.narrow(1, 0, k) : memory.narrow(1, 0, rows).t()) {}
  Tensor memory;
  Side side;
  Tensor matrix;
};

Tensor exact_product(const Tensor& left, const Tensor& right, const Tensor& bias) {
  const Tensor sum = at::mm(left.to(at::kDouble), right.to(at::kDouble));
  return (bias.defined() ? sum + bias.to(at::kDouble) : sum).to(at::kFloat).to(at::kBFloat16);
}

void multiply_part(const Product& product, int64_t begin, int64_t end) {
  const int64_t bytes = product::scratch_bytes(product);
  const Tensor scratch = at::full({bytes + kGuardBytes}, kGuard, at::kChar);
  product::multiply(product, begin, end, static_cast<char*>(scratch.data_ptr()));
  EXPECT_TRUE(scratch.narrow(0, bytes, kGuardBytes).eq(kGuard).all().item<bool>())
      << "wrote behind its scratch";
}

void expect_exact(int64_t rows, int64_t columns, int64_t depth, bool left_along_k, bool right_along_k,
                  bool with_bias, int64_t gap, double cut) {
  const Stored left(rows, depth, left_along_k, gap), right(columns, depth, right_along_k, gap);
  const Tensor bias = with_bias ? integers({columns}) : Tensor();
  const Tensor memory = at::full({rows, columns + gap}, 7, at::kBFloat16);
  const Product product{.rows = rows,
                        .columns = columns,
                        .depth = depth,
                        .left = left.side,
                        .right = right.side,
                        .out = bits_of(memory),
                        .out_stride = columns + gap,
                        .bias = with_bias ? bits_of(bias) : nullptr};
  const int64_t parts = product::parts_of(product);
  const auto middle = static_cast<int64_t>(cut * static_cast<double>(parts + 1));
  multiply_part(product, middle, parts);
  multiply_part(product, 0, middle);
  EXPECT_TRUE(at::equal(memory.narrow(1, 0, columns), exact_product(left.matrix, right.matrix.t(), bias)))
      << rows << " x " << columns << " x " << depth << ", left along k: " << left_along_k
      << ", right along k: " << right_along_k << ", bias: " << with_bias << ", gap: " << gap;
  EXPECT_TRUE(memory.narrow(1, columns, gap).eq(7).all().item<bool>()) << "wrote beside its rows";
}

TEST(Product, TilesAreExactInAnyLayoutSizeAndCut) {
  if (!product::runs_here()) GTEST_SKIP() << "the processor has no AMX for bf16";
  at::manual_seed(1);
  std::mt19937 random(1);
  const auto up_to = [&](int64_t most) {
    return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  for (int trial = 0; trial < 160; ++trial) {
    const int64_t depth = up_to(trial % 3 == 0 ? 2500 : 100);
    expect_exact(up_to(150), up_to(150), depth, trial & 1, trial & 2, trial & 4, up_to(6) - 1,
                 static_cast<double>(random() % 100) / 100);
  }
}

// Whole tiles that are multiplied in place, lines that go past the caches, several parts of the kept side and
// more sums than may wait at once.
TEST(Product, TilesAreExactInLargeSizes) {
  if (!product::runs_here()) GTEST_SKIP() << "the processor has no AMX for bf16";
  at::manual_seed(2);
  for (const bool left_along_k : {true, false})
    for (const bool right_along_k : {true, false}) {
      expect_exact(256, 1056, 768, left_along_k, right_along_k, true, 0, 0.5);
      expect_exact(1024, 992, 2080, left_along_k, right_along_k, false, 32, 0.3);
    }
}

TEST(Product, OfTensors) {
  if (!product::runs_here()) GTEST_SKIP() << "the processor has no AMX for bf16";
  at::manual_seed(3);
  const Tensor x = integers({200, 96}), weight = integers({333, 96}), bias = integers({333}),
               gradient = integers({200, 333});
  const auto expect_equal = [](const Tensor& left, const Tensor& right, const Tensor& to_add) {
    const std::optional<Tensor> got = detail::product_of_tiles(left, right, to_add);
    ASSERT_TRUE(got);
    EXPECT_TRUE(got->is_contiguous());
    EXPECT_TRUE(at::equal(*got, exact_product(left, right, to_add)));
  };
  const int threads = at::get_num_threads();
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    expect_equal(x, weight.t(), bias);
    expect_equal(gradient, weight, {});
    expect_equal(gradient.t(), x, {});
  }
  at::set_num_threads(threads);

  const Tensor apart = integers({200, 192}).slice(1, 0, 192, 2);
  EXPECT_FALSE(detail::product_of_tiles(apart, weight.t()));
  EXPECT_FALSE(detail::product_of_tiles(x, weight));
  EXPECT_FALSE(detail::product_of_tiles(x, weight.t(), integers({1})));
  EXPECT_FALSE(detail::product_of_tiles(x, weight.t(), bias.to(at::kFloat)));
  EXPECT_FALSE(detail::product_of_tiles(x.to(at::kFloat), weight.to(at::kFloat).t()));
  EXPECT_FALSE(detail::product_of_tiles(x.narrow(0, 0, 4), weight.t())) << "small";
}

TEST(Product, OfOddRows) {
  at::manual_seed(4);
  constexpr int64_t kRows = 128, kOdd = 8195, kFeatures = 64;  // 128 rows of 8195 are a matrix worth a copy
  const Tensor x = integers({kRows, kFeatures}), weight = integers({kOdd, kFeatures}),
               logits = integers({kRows, kOdd});
  for (const auto& [left, right] : {std::pair{x, weight.t()}, {logits, weight}}) {
    const std::optional<Tensor> got = detail::product_of_odd_rows(left, right);
    ASSERT_TRUE(got);
    EXPECT_TRUE(got->is_contiguous());
    EXPECT_TRUE(at::equal(*got, exact_product(left, right, {})));
  }
  const Tensor even = integers({kRows, 8192});
  for (const auto& [left, right] :
       {std::pair{even, integers({8192, kFeatures})},        // rows that start at 64 bytes
        {logits.t(), x},                                     // rows that lie apart
        {integers({kRows, 65}), integers({65, kFeatures})},  // a copy would not pay
        {logits, x},                                         // no product
        {logits.to(at::kFloat), weight.to(at::kFloat)}})
    EXPECT_FALSE(detail::product_of_odd_rows(left, right)) << left.sizes();
}

}  // namespace

// Products of bf16 matrices, by tiles and widened, against exact sums.
#include "operators/product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/processor.h"
#include "operators/product/product.h"

namespace {
using at::Tensor;
namespace detail = zero::detail;
namespace product = zero::product;

/// Small integers: products and sums of them are exact in fp32, so each result has one right rounding.
Tensor integers(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) {
  return at::randint(-3, 4, sizes, dtype);
}

Tensor exact_product(const Tensor& left, const Tensor& right, const Tensor& bias) {
  const Tensor sum = at::mm(left.to(at::kDouble), right.to(at::kDouble));
  return (bias.defined() ? sum + bias.to(at::kDouble) : sum).to(at::kFloat).to(left.scalar_type());
}

#if defined(__x86_64__)

constexpr int64_t kGuardBytes = 64;
constexpr int8_t kGuard = 0x5a;

uint16_t* data_of(const Tensor& x) { return static_cast<uint16_t*>(x.data_ptr()); }

/// A matrix [rows, k] in memory one way or the other, rows `gap` elements apart.
struct Stored {
  Stored(const Tensor& values, bool along_k, int64_t gap)
      : memory(integers({values.size(along_k ? 0 : 1), values.size(along_k ? 1 : 0) + gap})),
        side{data_of(memory), memory.size(1), along_k},
        matrix(memory.narrow(1, 0, memory.size(1) - gap)) {
    if (!along_k) matrix = matrix.t();
    matrix.copy_(values);
  }
  Tensor memory;
  product::Bf16Side side;
  Tensor matrix;
};

void multiply_part(const product::Bf16Product& product, int64_t begin, int64_t end) {
  const int64_t bytes = product::kAmx.scratch_bytes(product);
  const Tensor scratch = at::full({bytes + kGuardBytes}, kGuard, at::kChar);
  product::kAmx.multiply(product, begin, end, static_cast<char*>(scratch.data_ptr()));
  EXPECT_TRUE(scratch.narrow(0, bytes, kGuardBytes).eq(kGuard).all().item<bool>())
      << "wrote behind its scratch";
}

/// How a product lies in memory, and where it is cut.
struct Lies {
  bool left_along_k, right_along_k;
  int64_t gap;
  double cut;
};

/// left [rows, k] by right [k, columns] plus bias.
Tensor multiply(const Tensor& left, const Tensor& right, const Tensor& bias, const Lies& lies) {
  const Stored stored_left(left, lies.left_along_k, lies.gap),
      stored_right(right.t(), lies.right_along_k, lies.gap);
  const int64_t rows = left.size(0), columns = right.size(1);
  const Tensor memory = at::full({rows, columns + lies.gap}, 7, at::kBFloat16);
  const product::Bf16Product product{.rows = rows,
                                     .columns = columns,
                                     .depth = left.size(1),
                                     .left = stored_left.side,
                                     .right = stored_right.side,
                                     .out = data_of(memory),
                                     .out_stride = columns + lies.gap,
                                     .bias = bias.defined() ? data_of(bias) : nullptr};
  const int64_t parts = product::kAmx.parts_of(product);
  const auto middle = static_cast<int64_t>(lies.cut * static_cast<double>(parts + 1));
  multiply_part(product, middle, parts);
  multiply_part(product, 0, middle);
  EXPECT_TRUE(memory.narrow(1, columns, lies.gap).eq(7).all().item<bool>()) << "wrote beside its rows";
  return memory.narrow(1, 0, columns);
}

void expect_exact(int64_t rows, int64_t columns, int64_t depth, bool with_bias, const Lies& lies) {
  const Tensor left = integers({rows, depth}), right = integers({depth, columns});
  const Tensor bias = with_bias ? integers({columns}) : Tensor();
  EXPECT_TRUE(at::equal(multiply(left, right, bias, lies), exact_product(left, right, bias)))
      << rows << " x " << columns << " x " << depth << ", left along k: " << lies.left_along_k
      << ", right along k: " << lies.right_along_k << ", bias: " << with_bias << ", gap: " << lies.gap;
}

void expect_exact_in_any_case() {
  at::manual_seed(1);
  std::mt19937 random(1);
  const auto up_to = [&](int64_t most) {
    return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t depth = up_to(trial % 3 == 0 ? 2500 : 100);
    expect_exact(
        up_to(150), up_to(150), depth, trial & 4,
        {(trial & 1) != 0, (trial & 2) != 0, up_to(6) - 1, static_cast<double>(random() % 100) / 100});
  }
}

// Whole tiles that are multiplied in place, lines that go past the caches, several parts of the kept side and
// several passes over k.
void expect_exact_in_large_sizes() {
  at::manual_seed(2);
  for (const bool left_along_k : {true, false})
    for (const bool right_along_k : {true, false}) {
      expect_exact(256, 1056, 768, true, {left_along_k, right_along_k, 0, 0.5});
      expect_exact(1056, 256, 768, true, {left_along_k, right_along_k, 16, 0.4});
      expect_exact(1024, 992, 2080, false, {left_along_k, right_along_k, 32, 0.3});
    }
}

TEST(TiledProduct, IsExactInAnyLayoutSizeAndCut) {
  if (!zero::runs_amx()) GTEST_SKIP() << "the processor has no AMX";
  expect_exact_in_any_case();
  expect_exact_in_large_sizes();
}

TEST(TiledProduct, RoundsToEvenAndKeepsWhatIsNoNumber) {
  if (!zero::runs_amx()) GTEST_SKIP() << "the processor has no AMX";
  const float nan = std::nanf(""), inf = HUGE_VALF;
  // 256 + 1 and 256 + 3 lie halfway between two bf16 numbers.
  const Tensor left = at::tensor({256.0F, nan, inf, -inf}).view({4, 1}).to(at::kBFloat16).expand({4, 33});
  const Tensor ones = at::zeros({33, 40}, at::kBFloat16);
  ones[0].fill_(1);
  Tensor first = left.clone();
  first.narrow(1, 1, 32).zero_();
  for (const auto& [added, rounded] : {std::pair{1.0F, 256.0F}, {3.0F, 260.0F}}) {
    const Tensor bias = at::full({40}, added, at::kBFloat16);
    const Tensor got = multiply(first, ones, bias, {true, true, 0, 0.5}).to(at::kFloat);
    EXPECT_TRUE(got[0].eq(rounded).all().item<bool>()) << got[0][0];
    EXPECT_TRUE(got[1].isnan().all().item<bool>());
    EXPECT_TRUE(got[2].eq(inf).all().item<bool>());
    EXPECT_TRUE(got[3].eq(-inf).all().item<bool>());
  }
}

#endif

// What both ways say of tensors: where they are open, the values; where not, that nothing was done.
TEST(Product, OfTensors) {
  at::manual_seed(4);
  const bool ours = detail::has_tiled_products() || detail::has_widened_products();
  const Tensor x = integers({200, 96}), weight = integers({333, 96}), bias = integers({333}),
               gradient = integers({200, 333});
  const auto expect_equal = [&](const Tensor& left, const Tensor& right, const Tensor& to_add) {
    const std::optional<Tensor> got = detail::fast_product(left, right, to_add);
    ASSERT_EQ(got.has_value(), ours);
    if (!ours) return;
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

  EXPECT_FALSE(detail::fast_product(x, weight));
  EXPECT_FALSE(detail::fast_product(x, weight.t(), integers({1})));
  EXPECT_FALSE(detail::fast_product(x, weight.t(), bias.to(at::kFloat)));
  EXPECT_FALSE(detail::fast_product(x.to(at::kFloat), weight.to(at::kFloat).t())) << "LibTorch's own";
  EXPECT_FALSE(detail::fast_product(x, weight.to(at::kFloat).t()));
  EXPECT_FALSE(detail::fast_product(x.narrow(0, 0, 1).narrow(1, 0, 2), weight.t().narrow(0, 0, 2)))
      << "small";
  EXPECT_FALSE(detail::fast_product(x.to(at::kFloat).to_sparse_csr(), weight.t().to(at::kFloat)));
}

// On any processor: parts of rows, columns and k, in any strides, with one rounding.
TEST(WidenedProduct, IsExact) {
  at::manual_seed(6);
  struct Size {
    int64_t rows, columns, depth;
  };
  for (const auto& [rows, columns, depth] :
       {Size{1, 1, 1}, {7, 5, 3}, {1024, 3, 4096}, {1025, 1030, 20}, {3, 2050, 4100}, {30, 1, 8200}})
    for (const bool turned : {false, true}) {
      const Tensor left = turned ? integers({depth, rows}).t() : integers({rows, depth}),
                   right = turned ? integers({columns, depth}).t()
                                  : integers({depth, 2 * columns}).slice(1, 0, 2 * columns, 2);
      const Tensor bias = turned ? integers({columns}) : Tensor();
      Tensor memory = at::full({rows, columns + 3}, 7, at::kBFloat16);
      detail::multiply_widened(memory.narrow(1, 0, columns), left, right, bias);
      EXPECT_TRUE(at::equal(memory.narrow(1, 0, columns), exact_product(left, right, bias)))
          << rows << " x " << columns << " x " << depth;
      EXPECT_TRUE(memory.narrow(1, columns, 3).eq(7).all().item<bool>()) << "wrote beside its rows";
    }
}

TEST(WidenedProduct, OfPairsWhereTheProcessorMultipliesNoBf16) {
  at::manual_seed(8);
  const bool ours = detail::has_widened_products();
  const Tensor left = integers({5, 40, 30}), right = integers({5, 70, 30}).transpose(1, 2);
  const std::optional<Tensor> got = detail::fast_products_of_pairs(left, right);
  ASSERT_EQ(got.has_value(), ours);
  if (ours) {
    EXPECT_TRUE(at::equal(*got, at::bmm(left.to(at::kDouble), right.to(at::kDouble)).to(at::kBFloat16)));
  }
  EXPECT_FALSE(detail::fast_products_of_pairs(left, right.narrow(0, 0, 4)));
  EXPECT_FALSE(detail::fast_products_of_pairs(left, right.narrow(1, 0, 29)));
  EXPECT_FALSE(detail::fast_products_of_pairs(left.to(at::kFloat), right.to(at::kFloat)));
}

}  // namespace

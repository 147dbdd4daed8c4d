// Products of matrices by our kernels, in any layout, and bf16 with aligned copies, against exact sums.
#include "operators/product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <string_view>

#include "operators/product/product.h"

namespace {
using at::Tensor;
namespace detail = zero::detail;
namespace product = zero::product;

constexpr int64_t kGuardBytes = 64;
constexpr int8_t kGuard = 0x5a;

template <class T>
constexpr at::ScalarType kType = at::kFloat;
template <>
constexpr at::ScalarType kType<uint16_t> = at::kBFloat16;

/// Small integers: products and sums of them are exact in fp32, so each result has one right rounding.
Tensor integers(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) {
  return at::randint(-3, 4, sizes, dtype);
}

template <class T>
T* data_of(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

/// A matrix [rows, k] in memory one way or the other, rows `gap` elements apart.
template <class T>
struct Stored {
  Stored(const Tensor& values, bool along_k, int64_t gap)
      : memory(integers({values.size(along_k ? 0 : 1), values.size(along_k ? 1 : 0) + gap}, kType<T>)),
        side{data_of<T>(memory), memory.size(1), along_k},
        matrix(memory.narrow(1, 0, memory.size(1) - gap)) {
    if (!along_k) matrix = matrix.t();
    matrix.copy_(values);
  }
  Tensor memory;
  product::SideOf<T> side;
  Tensor matrix;
};

Tensor exact_product(const Tensor& left, const Tensor& right, const Tensor& bias) {
  const Tensor sum = at::mm(left.to(at::kDouble), right.to(at::kDouble));
  return (bias.defined() ? sum + bias.to(at::kDouble) : sum).to(at::kFloat).to(left.scalar_type());
}

template <class T>
void multiply_part(const product::KernelsOf<T>& kernels, const product::ProductOf<T>& product, int64_t begin,
                   int64_t end) {
  const int64_t bytes = kernels.scratch_bytes(product);
  const Tensor scratch = at::full({bytes + kGuardBytes}, kGuard, at::kChar);
  kernels.multiply(product, begin, end, static_cast<char*>(scratch.data_ptr()));
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
template <class T>
Tensor multiply(const product::KernelsOf<T>& kernels, const Tensor& left, const Tensor& right,
                const Tensor& bias, const Lies& lies) {
  const Stored<T> stored_left(left, lies.left_along_k, lies.gap),
      stored_right(right.t(), lies.right_along_k, lies.gap);
  const int64_t rows = left.size(0), columns = right.size(1);
  const Tensor memory = at::full({rows, columns + lies.gap}, 7, kType<T>);
  const product::ProductOf<T> product{.rows = rows,
                                      .columns = columns,
                                      .depth = left.size(1),
                                      .left = stored_left.side,
                                      .right = stored_right.side,
                                      .out = data_of<T>(memory),
                                      .out_stride = columns + lies.gap,
                                      .bias = bias.defined() ? data_of<T>(bias) : nullptr};
  const int64_t parts = kernels.parts_of(product);
  const auto middle = static_cast<int64_t>(lies.cut * static_cast<double>(parts + 1));
  multiply_part(kernels, product, middle, parts);
  multiply_part(kernels, product, 0, middle);
  EXPECT_TRUE(memory.narrow(1, columns, lies.gap).eq(7).all().template item<bool>())
      << "wrote beside its rows";
  return memory.narrow(1, 0, columns);
}

template <class T>
void expect_exact(const product::KernelsOf<T>& kernels, int64_t rows, int64_t columns, int64_t depth,
                  bool with_bias, const Lies& lies) {
  const Tensor left = integers({rows, depth}, kType<T>), right = integers({depth, columns}, kType<T>);
  const Tensor bias = with_bias ? integers({columns}, kType<T>) : Tensor();
  EXPECT_TRUE(at::equal(multiply(kernels, left, right, bias, lies), exact_product(left, right, bias)))
      << kernels.name << ": " << rows << " x " << columns << " x " << depth
      << ", left along k: " << lies.left_along_k << ", right along k: " << lies.right_along_k
      << ", bias: " << with_bias << ", gap: " << lies.gap;
}

template <class T>
void expect_exact_in_any_case(const product::KernelsOf<T>& kernels) {
  at::manual_seed(1);
  std::mt19937 random(1);
  const auto up_to = [&](int64_t most) {
    return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  for (int trial = 0; trial < 160; ++trial) {
    const int64_t depth = up_to(trial % 3 == 0 ? 2500 : 100);
    expect_exact(
        kernels, up_to(150), up_to(150), depth, trial & 4,
        {(trial & 1) != 0, (trial & 2) != 0, up_to(6) - 1, static_cast<double>(random() % 100) / 100});
  }
}

// Whole tiles that are multiplied in place, lines that go past the caches, several parts of the kept side and
// several passes over k.
template <class T>
void expect_exact_in_large_sizes(const product::KernelsOf<T>& kernels) {
  at::manual_seed(2);
  for (const bool left_along_k : {true, false})
    for (const bool right_along_k : {true, false}) {
      expect_exact(kernels, 256, 1056, 768, true, {left_along_k, right_along_k, 0, 0.5});
      expect_exact(kernels, 1056, 256, 768, true, {left_along_k, right_along_k, 16, 0.4});
      expect_exact(kernels, 1024, 992, 2080, false, {left_along_k, right_along_k, 32, 0.3});
    }
}

TEST(Product, Bf16IsExactInAnyLayoutSizeAndCut) {
  if (product::bf16_kernels().empty()) GTEST_SKIP() << "the processor has no AVX2";
  for (const auto* kernels : product::bf16_kernels()) {
    expect_exact_in_any_case(*kernels);
    expect_exact_in_large_sizes(*kernels);
  }
}

TEST(Product, Fp32IsExactInAnyLayoutSizeAndCut) {
  if (product::fp32_kernels().empty()) GTEST_SKIP() << "the processor has no AVX2";
  for (const auto* kernels : product::fp32_kernels()) {
    expect_exact_in_any_case(*kernels);
    expect_exact_in_large_sizes(*kernels);
  }
}

template <class T>
void expect_the_same_bits(std::span<const product::KernelsOf<T>* const> all, double tolerance) {
  if (all.empty()) GTEST_SKIP() << "the processor has no AVX2";
  at::manual_seed(3);
  const Tensor left = at::randn({300, 2000}).to(kType<T>), right = at::randn({2000, 250}).to(kType<T>),
               bias = at::randn({250}).to(kType<T>);
  const Tensor first = multiply(*all.front(), left, right, bias, {true, true, 0, 0});
  const Tensor exact = at::addmm(bias.to(at::kDouble), left.to(at::kDouble), right.to(at::kDouble));
  EXPECT_LT((first - exact).abs().max().item<double>(), tolerance);  // sums of 2000 products, of some 45
  for (const auto* kernels : all)
    for (const bool left_along_k : {true, false})
      for (const bool right_along_k : {true, false}) {
        if (std::string_view(kernels->name) == "amx") continue;  // adds in pairs
        const Lies lies{left_along_k, right_along_k, 3, 0.6};
        EXPECT_TRUE(at::equal(multiply(*kernels, left, right, bias, lies), first)) << kernels->name;
        const Tensor few = multiply(*kernels, left.narrow(0, 40, 50), right, bias, lies);
        EXPECT_TRUE(at::equal(few, first.narrow(0, 40, 50))) << kernels->name << ", 50 rows";
      }
}

// The order of a sum depends on k alone: not on the registers, the layout, the cut or the other dims.
TEST(Product, Fp32HasTheSameBitsInAllWays) { expect_the_same_bits(product::fp32_kernels(), 2e-4); }
TEST(Product, Bf16HasTheSameBitsInAllWays) { expect_the_same_bits(product::bf16_kernels(), 0.51); }

TEST(Product, RoundsToEvenAndKeepsWhatIsNoNumber) {
  const float nan = std::nanf(""), inf = HUGE_VALF;
  for (const auto* kernels : product::bf16_kernels()) {
    // 256 + 1 and 256 + 3 lie halfway between two bf16 numbers.
    const Tensor left = at::tensor({256.0F, nan, inf, -inf}).view({4, 1}).to(at::kBFloat16).expand({4, 33});
    const Tensor ones = at::zeros({33, 40}, at::kBFloat16);
    ones[0].fill_(1);
    Tensor first = left.clone();
    first.narrow(1, 1, 32).zero_();
    for (const auto& [added, rounded] : {std::pair{1.0F, 256.0F}, {3.0F, 260.0F}}) {
      const Tensor bias = at::full({40}, added, at::kBFloat16);
      const Tensor got = multiply(*kernels, first, ones, bias, {true, true, 0, 0.5}).to(at::kFloat);
      EXPECT_TRUE(got[0].eq(rounded).all().item<bool>()) << kernels->name << ": " << got[0][0];
      EXPECT_TRUE(got[1].isnan().all().item<bool>()) << kernels->name;
      EXPECT_TRUE(got[2].eq(inf).all().item<bool>()) << kernels->name;
      EXPECT_TRUE(got[3].eq(-inf).all().item<bool>()) << kernels->name;
    }
  }
}

void expect_products(at::ScalarType dtype) {
  at::manual_seed(4);
  const Tensor x = integers({200, 96}, dtype), weight = integers({333, 96}, dtype),
               bias = integers({333}, dtype), gradient = integers({200, 333}, dtype);
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

  const Tensor apart = integers({200, 192}, dtype).slice(1, 0, 192, 2);
  EXPECT_FALSE(detail::product_of_tiles(apart, weight.t()));
  EXPECT_FALSE(detail::product_of_tiles(x, weight));
  EXPECT_FALSE(detail::product_of_tiles(x, weight.t(), integers({1}, dtype)));
  EXPECT_FALSE(detail::product_of_tiles(x, weight.t(), bias.to(at::kDouble)));
  EXPECT_FALSE(detail::product_of_tiles(x.to(at::kDouble), weight.to(at::kDouble).t()));
  EXPECT_FALSE(detail::product_of_tiles(x, weight.to(at::kDouble).t()));
  EXPECT_FALSE(detail::product_of_tiles(x.narrow(0, 0, 1), weight.t())) << "small";
}

TEST(Product, OfTensorsInBf16) {
  if (product::best_bf16_kernels() == nullptr) GTEST_SKIP() << "LibTorch's are faster, or there are none";
  expect_products(at::kBFloat16);
}

TEST(Product, OfTensorsInFp32) {
  if (product::fp32_kernels().empty()) GTEST_SKIP() << "the processor has no AVX2";
  expect_products(at::kFloat);
}

TEST(Product, OfPairs) {
  const auto* kernels = product::best_bf16_kernels();
  at::manual_seed(8);
  const Tensor left = integers({5, 40, 30}), right = integers({5, 30, 70});
  const bool ours = kernels != nullptr && kernels->in_batches;
  EXPECT_EQ(detail::products_of_pairs(left, right).has_value(), ours);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    EXPECT_FALSE(detail::products_of_pairs(left.to(dtype), right.to(dtype)));
  if (!ours) GTEST_SKIP() << "LibTorch's are faster, or there are none";
  const Tensor apart = integers({40, 5, 30}).transpose(0, 1), turned = integers({5, 70, 30}).transpose(1, 2),
               one = integers({1, 30, 70}).expand({5, 30, 70});
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    for (const Tensor& a : {left, apart})
      for (const Tensor& b : {right, turned, one}) {
        const std::optional<Tensor> got = detail::products_of_pairs(a, b);
        ASSERT_TRUE(got);
        EXPECT_TRUE(got->is_contiguous());
        const Tensor exact = at::bmm(a.to(at::kDouble), b.to(at::kDouble)).to(at::kFloat).to(at::kBFloat16);
        EXPECT_TRUE(at::equal(*got, exact)) << count << " threads";
      }
  }
  at::set_num_threads(threads);
  EXPECT_FALSE(detail::products_of_pairs(left, right.narrow(0, 0, 4)));
  EXPECT_FALSE(detail::products_of_pairs(left, right.narrow(1, 0, 29)));
  EXPECT_FALSE(detail::products_of_pairs(left[0], right[0]));
  EXPECT_FALSE(detail::products_of_pairs(left.narrow(0, 0, 0), right.narrow(0, 0, 0)));
}

TEST(Product, OfOddRows) {
  at::manual_seed(5);
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

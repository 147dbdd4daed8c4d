// Every kernel variant against the reference, bit for bit, and the reference's conversions against
// arithmetic.
#include "optim/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "optim/kernels/scalar.h"

namespace zero::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

/// Any bit pattern, with the values that break kernels far more often than chance would give them.
float nasty_float(std::mt19937& random) {
  static const float kSpecial[] = {0.0F,      -0.0F,   kInf,          -kInf,  kQuietNan,   1e-45F,
                                   -1e-45F,   1e-38F,  -1.17549e-38F, 3e38F,  -3e38F,      65504.F,
                                   65519.99F, 65520.F, 6e-8F,         3e-8F,  2.98e-8F,    6.1e-5F,
                                   1.0F,      -1.0F,   1e19F,         -1e19F, 1.00390625F, 1.01171875F};
  switch (random() % 4) {
    case 0:
      return kSpecial[random() % std::size(kSpecial)];
    case 1:
      return float_of(static_cast<uint32_t>(random()));
    default:
      return std::normal_distribution<float>()(random);
  }
}

/// What one kernel call works on, at an offset from the allocation's start so that nothing is aligned.
struct Memory {
  std::vector<float> master, first, second, gradient32, parameter32;
  std::vector<uint16_t> gradient16, parameter16;
  std::vector<Remainder> remainder;
  size_t offset;

  Memory(size_t count, size_t offset, uint32_t seed, bool nasty) : offset(offset) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const size_t total = count + offset + 32;
    for (auto* values : {&master, &first, &second, &gradient32}) {
      values->resize(total);
      for (float& value : *values) value = nasty ? nasty_float(random) : normal(random);
    }
    for (float& value : second) value = nasty && random() % 8 == 0 ? value : std::fabs(value);
    gradient16.resize(total);
    for (auto& value : gradient16) value = nasty ? static_cast<uint16_t>(random()) : to_bf16(normal(random));
    parameter32.assign(total, -7.0F);
    parameter16.assign(total, 0x1234);
    remainder.resize(total);
    for (auto& value : remainder) value = static_cast<Remainder>(random());
  }

  /// Any master in two halves.
  Buffers split_buffers(Element gradient, int states) {
    Buffers b = buffers(gradient, Element::bf16, states);
    for (size_t i = 0; i < parameter16.size(); ++i) parameter16[i] = to_bf16(master[i]);
    b.master = nullptr;
    b.remainder = remainder.data() + offset;
    return b;
  }

  Buffers buffers(Element gradient, Element parameter, int states) {
    Buffers b;
    b.master = master.data() + offset;
    b.gradient_type = gradient;
    b.gradient = gradient == Element::f32 ? static_cast<const void*>(gradient32.data() + offset)
                                          : static_cast<const void*>(gradient16.data() + offset);
    b.parameter_type = parameter;
    if (parameter == Element::f32) b.parameter = parameter32.data() + offset;
    if (parameter == Element::bf16 || parameter == Element::f16) b.parameter = parameter16.data() + offset;
    if (states > 0) b.first = first.data() + offset;
    if (states > 1) b.second = second.data() + offset;
    return b;
  }
};

/// Bits, except that one NaN is as good as another.
void expect_same(const std::vector<float>& actual, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(bits_of(actual[i]), bits_of(expected[i]))
        << what << "[" << i << "]: " << actual[i] << " and " << expected[i];
  }
}

void expect_same(const Memory& actual, const Memory& expected) {
  expect_same(actual.master, expected.master, "master");
  expect_same(actual.first, expected.first, "first");
  expect_same(actual.second, expected.second, "second");
  expect_same(actual.gradient32, expected.gradient32, "gradient");
  expect_same(actual.parameter32, expected.parameter32, "parameter");
  ASSERT_EQ(actual.parameter16, expected.parameter16);
  ASSERT_EQ(actual.remainder, expected.remainder);
  ASSERT_EQ(actual.gradient16, expected.gradient16);
}

constexpr Element kGradients[] = {Element::f32, Element::bf16, Element::f16};
constexpr Element kParameters[] = {Element::none, Element::f32, Element::bf16, Element::f16};

/// Runs `call` with the reference and every other variant on equal memory, for all types, tails and offsets.
template <class Call>
void compare_variants(int states, Call call) {
  const KernelSet& reference = *available_kernels().front();
  for (const KernelSet* variant : available_kernels()) {
    SCOPED_TRACE(variant->name);
    uint32_t seed = 1;
    for (const Element gradient : kGradients) {
      for (const Element parameter : kParameters) {
        for (size_t count = 0; count <= 70; ++count) {
          const size_t offset = count % 17;
          const bool nasty = seed % 3 != 0, split = parameter == Element::bf16 && count % 2 == 1;
          Memory expected(count, offset, ++seed, nasty), actual = expected;
          const auto buffers = [&](Memory& memory) {
            return split ? memory.split_buffers(gradient, states)
                         : memory.buffers(gradient, parameter, states);
          };
          call(reference, buffers(expected), static_cast<int64_t>(count));
          call(*variant, buffers(actual), static_cast<int64_t>(count));
          expect_same(actual, expected);
          if (testing::Test::HasFatalFailure()) {
            ADD_FAILURE() << "count " << count << ", gradient " << int(gradient) << ", parameter "
                          << int(parameter);
            return;
          }
        }
      }
    }
  }
}

AdamScalars adam_scalars(bool decoupled) {
  return {.gradient_scale = 0.37F,
          .decay = decoupled ? 0.9997F : 0.013F,
          .beta1 = 0.9F,
          .one_minus_beta1 = 0.1F,
          .beta2 = 0.999F,
          .one_minus_beta2 = 0.001F,
          .inverse_root_correction = 3.2F,
          .eps = 1e-8F,
          .step_size = 3e-3F};
}

/// The values a rule has in a step, from its own numbers.
template <class Rule>
typename Arithmetic<Rule>::Scalars scalars_of(const Rule& rule) {
  return Arithmetic<Rule>::scalars(
      rule, {.lr = rule.lr, .weight_decay = rule.weight_decay, .gradient_scale = 0.37, .step = 3});
}

template <class Rule>
void compare_updates(const Rule& rule) {
  const int states = static_cast<int>(rule_state_names(rule).size());
  const auto scalars = scalars_of(rule);
  compare_variants(states, [scalars](const KernelSet& set, Buffers b, int64_t n) {
    set.of<Rule>().update(b, scalars, n);
  });
}

TEST(Kernels, ReferenceComesFirstAndTheProcessorsBestLast) {
  ASSERT_FALSE(available_kernels().empty());
  EXPECT_EQ(available_kernels().front()->name, "reference");
  EXPECT_EQ(&best_kernels(), available_kernels().back());
#if defined(__x86_64__)
  EXPECT_EQ(available_kernels().size() > 1, __builtin_cpu_supports("avx2") != 0);
#endif
}

TEST(Kernels, EveryRulesVariantsGiveTheReferencesBits) {
  for_each_rule([](const auto& rule) {
    SCOPED_TRACE(rule_name(rule));
    compare_updates(rule);
  });
  compare_updates(SGD{.lr = 0.05, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01});
  compare_updates(SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  compare_updates(AdamW{.lr = 1, .weight_decay = 0.03});
  compare_updates(LARS{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  compare_updates(LARS{.lr = 0.05, .momentum = 0, .weight_decay = 0.01});
}

// A rule's first phase: the states and the sums.
TEST(Kernels, EveryRulesDirectionsGiveTheReferencesBits) {
  int with_sums = 0;
  for_each_rule([&]<class Rule>(const Rule& rule) {
    if constexpr (Arithmetic<Rule>::kSums > 0) {
      with_sums++;
      const auto scalars = scalars_of(rule);
      std::vector<double> expected;
      compare_variants(2, [&](const KernelSet& set, Buffers b, int64_t n) {
        constexpr int64_t kBlock = 32;
        std::vector<double> sums(static_cast<size_t>((n + kBlock - 1) / kBlock) * Arithmetic<Rule>::kSums,
                                 -1);
        set.of<Rule>().direction(b, scalars, n, kBlock, sums.data());
        if (&set == available_kernels().front()) expected = sums;
        for (size_t i = 0; i < sums.size(); ++i)
          EXPECT_TRUE(sums[i] == expected[i] || (std::isnan(sums[i]) && std::isnan(expected[i])))
              << set.name << " " << n << ": " << sums[i] << " and " << expected[i];
      });
    }
  });
  EXPECT_GT(with_sums, 0);
}

std::vector<double> sums_of_squares(const KernelSet& set, const void* gradient, Element type, int64_t count,
                                    int64_t block) {
  std::vector<double> sums(static_cast<size_t>((count + block - 1) / block));
  set.sums_of_squares(gradient, type, count, block, sums.data());
  return sums;
}

TEST(Kernels, SumsOfSquaresHaveTheReferencesBits) {
  const KernelSet& reference = *available_kernels().front();
  for (const KernelSet* variant : available_kernels()) {
    for (const Element type : kGradients) {
      for (int64_t count = 0; count <= 150; ++count) {
        Memory memory(count, count % 5, static_cast<uint32_t>(count), false);
        const void* const gradient = memory.buffers(type, Element::none, 0).gradient;
        for (const int64_t block : {1, 7, 16, 32, 1000})
          EXPECT_EQ(sums_of_squares(*variant, gradient, type, count, block),
                    sums_of_squares(reference, gradient, type, count, block))
              << variant->name << " " << count << " in blocks of " << block;
      }
    }
  }
}

TEST(Kernels, SplitAndJoinHaveTheReferencesBits) {
  std::mt19937 random(8);
  for (const int64_t count : {0, 1, 7, 16, 17, 31, 33, 1000}) {
    std::vector<float> masters(static_cast<size_t>(count));
    for (float& master : masters) master = nasty_float(random);
    const auto parts_of = [&](const KernelSet& set) {
      std::vector<uint16_t> halves(masters.size());
      std::vector<Remainder> remainders(masters.size());
      std::vector<float> joined(masters.size());
      set.split(masters.data(), halves.data(), remainders.data(), count);
      set.join(halves.data(), remainders.data(), joined.data(), count);
      std::vector<uint32_t> bits;
      for (const float value : joined) bits.push_back(bits_of(value));
      return std::tuple(halves, remainders, bits);
    };
    const auto expected = parts_of(*available_kernels().front());
    for (const KernelSet* set : available_kernels())
      EXPECT_EQ(parts_of(*set), expected) << set->name << count;
    for (size_t i = 0; i < masters.size(); ++i)
      EXPECT_EQ(std::get<0>(expected)[i], to_bf16(masters[i])) << masters[i];
  }
}

TEST(Kernels, SumOfSquaresIsExactAndShowsWhatIsNotFinite) {
  std::vector<float> values(53);
  double expected = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) * 0.25F;
    expected += double{values[i]} * values[i];  // exact: few bits
  }
  for (const KernelSet* set : available_kernels()) {
    const auto sum = [set](const std::vector<float>& of) {
      return sums_of_squares(*set, of.data(), Element::f32, 53, 64).front();
    };
    EXPECT_EQ(sum(values), expected);
    for (const size_t place : {0, 17, 52}) {
      auto broken = values;
      broken[place] = kInf;
      EXPECT_TRUE(std::isinf(sum(broken)));
      broken[place] = kQuietNan;
      EXPECT_TRUE(std::isnan(sum(broken)));
      broken[place] = 3e38F;  // its square is beyond fp32
      EXPECT_TRUE(std::isfinite(sum(broken)));
    }
  }
}

TEST(Kernels, NaNReachesTheParameterAsTheQuietNaN) {
  for (const KernelSet* set : available_kernels()) {
    for (const Element type : {Element::bf16, Element::f16}) {
      Memory memory(40, 0, 5, false);
      memory.gradient32[3] = memory.gradient32[39] =
          float_of(0xffa00001);  // signalling, with sign and payload
      memory.master[20] = kQuietNan;
      set->of<AdamW>().update(memory.buffers(Element::f32, type, 2), adam_scalars(true), 40);
      const uint16_t nan = type == Element::bf16 ? 0x7fc0 : 0x7e00;
      for (size_t i = 0; i < 40; ++i)
        EXPECT_EQ(memory.parameter16[i] == nan, i == 3 || i == 20 || i == 39) << i;
    }
  }
}

TEST(Kernels, NothingOutsideTheRangeIsTouched) {
  for (const KernelSet* set : available_kernels()) {
    Memory memory(33, 3, 9, false);
    const Memory before = memory;
    set->of<AdamW>().update(memory.buffers(Element::bf16, Element::bf16, 2), adam_scalars(true), 33);
    for (size_t i = 0; i < memory.master.size(); ++i) {
      const bool inside = i >= 3 && i < 36;
      EXPECT_EQ(memory.master[i] != before.master[i], inside) << i;
      EXPECT_EQ(memory.parameter16[i] != 0x1234, inside) << i;
    }
  }
}

TEST(Conversions, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = static_cast<uint16_t>(half);
    const float f16 = from_f16(bits), bf16 = from_bf16(bits);
    EXPECT_EQ(to_f16(f16), std::isnan(f16) ? kF16Nan : bits) << half;
    EXPECT_EQ(to_bf16(bf16), std::isnan(bf16) ? kBf16Nan : bits) << half;
  }
}

TEST(Conversions, HalfValuesAreWhatTheFormatSays) {
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const int exponent = static_cast<int>(half >> 10), mantissa = static_cast<int>(half & 0x3ff);
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(from_f16(static_cast<uint16_t>(half)), value) << half;
    ASSERT_EQ(from_f16(static_cast<uint16_t>(half | 0x8000)), -value) << half;
  }
}

/// Between two neighbours: below the middle rounds down, above up, the middle to the even one.
template <class From, class To>
void check_rounding(From from, To to, uint16_t largest) {
  for (uint32_t half = 0; half < largest; ++half) {
    const double low = from(static_cast<uint16_t>(half)), high = from(static_cast<uint16_t>(half + 1));
    const auto middle = static_cast<float>((low + high) / 2);  // one bit more: exact in fp32
    const auto even = static_cast<uint16_t>(half + (half & 1));
    ASSERT_EQ(to(middle), even) << half;
    ASSERT_EQ(to(-middle), even | 0x8000) << half;
    ASSERT_EQ(to(std::nextafter(middle, 0.0F)), half);
    ASSERT_EQ(to(std::nextafter(middle, kInf)), half + 1);
  }
}

TEST(Conversions, RoundToNearestEven) {
  check_rounding(from_f16, to_f16, 0x7bff);
  check_rounding(from_bf16, to_bf16, 0x7f7f);
  EXPECT_EQ(to_f16(65519.996F), 0x7bff);
  EXPECT_EQ(to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(to_bf16(3.4e38F), 0x7f80);
  EXPECT_EQ(to_f16(-kInf), 0xfc00);
  EXPECT_EQ(to_bf16(-kInf), 0xff80);
}

// Whatever the fp32 value: the halves are the value, but for the one remainder that has no room.
TEST(Conversions, TwoHalvesAreTheValue) {
  const auto check = [](uint32_t bits) {
    const float value = float_of(bits);
    const uint16_t half = to_bf16(value);
    const uint32_t joined = bits_of(join(half, remainder_of(value, half)));
    if (std::isnan(value)) return joined == uint32_t{kBf16Nan} << 16;
    const bool no_room = (bits & 0x1ffff) == 0x8000;  // half way above an even bf16
    return joined == bits - (no_room ? 1 : 0) && to_bf16(float_of(joined)) == half;
  };
  for (uint32_t low = 0; low < 0x20000; ++low)
    for (const uint32_t high :
         {0U, 0x00800000U, 0x3f800000U, 0x3f820000U, 0x7f7e0000U, 0x80000000U, 0xbf7e0000U})
      ASSERT_TRUE(check(high + low)) << std::hex << high + low;
  std::mt19937 random(3);
  for (int i = 0; i < 1 << 20; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    ASSERT_TRUE(check(bits)) << std::hex << bits;
  }
  for (const uint32_t bits : {0x7f800000U, 0xff800000U, 0x7fffffffU, 0xffc00001U, 0x7f7fffffU})
    ASSERT_TRUE(check(bits)) << std::hex << bits;
}

// The same step on a whole master and on its two halves.
TEST(Kernels, SplitMastersTakeTheSameSteps) {
  for (const KernelSet* set : available_kernels()) {
    Memory whole(1000, 0, 11, false), split = whole;
    for (size_t i = 0; i < whole.master.size(); ++i) {
      const uint16_t half = to_bf16(whole.master[i]);
      split.remainder[i] = remainder_of(whole.master[i], half);
      whole.master[i] = join(half, split.remainder[i]);
    }
    const Buffers halves = split.split_buffers(Element::f32, 2);
    for (int step = 0; step < 5; ++step) {
      set->of<AdamW>().update(whole.buffers(Element::f32, Element::bf16, 2), adam_scalars(true), 1000);
      set->of<AdamW>().update(halves, adam_scalars(true), 1000);
    }
    int differ = 0;
    for (size_t i = 0; i < 1000; ++i) {
      EXPECT_EQ(whole.parameter16[i], split.parameter16[i]) << i;
      differ += bits_of(whole.master[i]) != bits_of(join(split.parameter16[i], split.remainder[i]));
    }
    EXPECT_LE(differ, 1) << "one value in 131072 moves by one unit in the last place";
  }
}

}  // namespace
}  // namespace zero::kernels

// Moments in 8 bits: the map of the paper, the nearest value of it, and updates that are those of a plain
// loop over whole parameters, however they are cut.
#include "optim/eight_bit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "optim/shard_optimizer.h"
#include "support/expect_error.h"
#include "zero/error.h"

namespace zero {
namespace {

using eight_bit::DynamicMap;
using Use = StateStore::Use;

// The nearest by looking at all; the smaller of two as near.
uint8_t nearest(const DynamicMap& map, float value) {
  int best = 0;
  for (int code = 1; code < 256; ++code)
    if (std::fabs(static_cast<double>(map.value(static_cast<uint8_t>(code))) - value) <
        std::fabs(static_cast<double>(map.value(static_cast<uint8_t>(best))) - value))
      best = code;
  return static_cast<uint8_t>(best);
}

TEST(EightBit, TheMapIsThePapers) {
  const DynamicMap &with_signs = DynamicMap::of_signed(), &without = DynamicMap::of_unsigned();
  for (int code = 1; code < 256; ++code) {
    const auto at = static_cast<uint8_t>(code), before = static_cast<uint8_t>(code - 1);
    EXPECT_LT(with_signs.value(before), with_signs.value(at));
    EXPECT_LT(without.value(before), without.value(at));
  }
  EXPECT_EQ(with_signs.value(255), 1);
  EXPECT_EQ(without.value(255), 1);
  EXPECT_EQ(without.value(0), 0);
  EXPECT_EQ(with_signs.value(127), 0) << "127 values below zero";
  EXPECT_FLOAT_EQ(with_signs.value(128), 5.5e-7F);
  EXPECT_FLOAT_EQ(without.value(1), 3.25e-7F);
  EXPECT_FLOAT_EQ(with_signs.value(254), 0.1F + 0.9F * 63.5F / 64);
  EXPECT_FLOAT_EQ(without.value(254), 0.1F + 0.9F * 127.5F / 128);
  for (int code = 0; code < 127; ++code)
    EXPECT_EQ(with_signs.value(static_cast<uint8_t>(code)),
              -with_signs.value(static_cast<uint8_t>(254 - code)));
}

TEST(EightBit, TheCodeIsTheNearest) {
  std::mt19937 random(1);
  for (const DynamicMap* map : {&DynamicMap::of_signed(), &DynamicMap::of_unsigned()}) {
    for (int code = 0; code < 256; ++code) EXPECT_EQ(map->code(map->value(static_cast<uint8_t>(code))), code);
    for (int i = 0; i < 20000; ++i) {
      const double magnitude = std::pow(10.0, -8.0 * (random() % 1000) / 1000);
      const auto value = static_cast<float>((random() % 2 ? 1 : -1) * magnitude);
      ASSERT_EQ(map->code(value), nearest(*map, value)) << value;
    }
    EXPECT_EQ(map->code(2), 255);
    EXPECT_EQ(map->code(std::nanf("")), 0);
  }
}

TEST(EightBit, BlocksHaveScalesOfTheirOwn) {
  constexpr int64_t kNumel = 2 * 256 + 77;
  std::vector<float> values(kNumel, 0), back(kNumel, 1);
  std::vector<uint8_t> codes(kNumel);
  std::vector<float> scales(3, 9);
  for (int64_t i = 256; i < kNumel; ++i) values[i] = std::sin(static_cast<float>(i)) * (i < 512 ? 1e-20F : 3);
  quantise(DynamicMap::of_signed(), values.data(), codes.data(), scales.data(), kNumel);
  dequantise(DynamicMap::of_signed(), codes.data(), scales.data(), back.data(), kNumel);
  EXPECT_EQ(scales[0], 0);
  EXPECT_EQ(back[10], 0);
  for (int64_t i = 256; i < kNumel; ++i) {
    const float scale = scales[static_cast<size_t>(i / 256)];
    EXPECT_EQ(back[i],
              DynamicMap::of_signed().value(nearest(DynamicMap::of_signed(), values[i] / scale)) * scale);
    EXPECT_NEAR(back[i], values[i], 0.01 * scale);
  }
  values[300] = std::nanf("");
  quantise(DynamicMap::of_signed(), values.data(), codes.data(), scales.data(), kNumel);
  dequantise(DynamicMap::of_signed(), codes.data(), scales.data(), back.data(), kNumel);
  EXPECT_TRUE(std::isnan(back[301])) << "what is no number does not become one";
}

/// Two parameters of 1000 and 700 elements in shards of a slab, as an engine of `ranks` ranks has them.
struct Cut {
  static constexpr int64_t kFirst = 1000, kSecond = 700, kSecondAt = 1024, kPadded = 2304;
  explicit Cut(int ranks) : shard_numel(kPadded / ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor master = at::zeros({shard_numel}), gradient = at::zeros({shard_numel});
      states.adopt(rank, kMasterState, master);
      states.adopt(rank, kGradientState, gradient);
      masters.push_back(master);
      gradients.push_back(gradient);
      OptimizerShard shard;
      shard.unit = rank;
      const auto add = [&](int parameter, int64_t begin, int64_t numel) {
        const int64_t from = std::max(begin, rank * shard_numel),
                      to = std::min(begin + numel, (rank + 1) * shard_numel);
        if (from >= to) return;
        shard.segments.push_back({.name = "p" + std::to_string(parameter),
                                  .parameter = parameter,
                                  .begin = from - rank * shard_numel,
                                  .end = to - rank * shard_numel,
                                  .parameter_begin = from - begin,
                                  .counted_begin = from - rank * shard_numel,
                                  .counted_end = to - rank * shard_numel});
      };
      add(0, 0, kFirst);
      add(1, kSecondAt, kSecond);
      shards.push_back(shard);
    }
  }
  void set(std::vector<at::Tensor>& into, const at::Tensor& slab) {
    for (size_t i = 0; i < into.size(); ++i)
      into[i].copy_(slab.narrow(0, static_cast<int64_t>(i) * shard_numel, shard_numel));
  }
  at::Tensor whole(const std::string& kind, int64_t each) {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < masters.size(); ++i)
      parts.push_back(states.lend(static_cast<int>(i), {std::string_view(kind)}, Use::Read)[kind].clone());
    EXPECT_EQ(parts[0].numel(), shard_numel / each);
    return at::cat(parts);
  }
  int64_t shard_numel;
  StateStore states;
  std::vector<at::Tensor> masters, gradients;
  std::vector<OptimizerShard> shards;
};

at::Tensor slab_of(int seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  at::Tensor slab = at::zeros({Cut::kPadded});
  slab.narrow(0, 0, Cut::kFirst).normal_(0, 1, generator);
  slab.narrow(0, Cut::kSecondAt, Cut::kSecond).normal_(0, 1e-3, generator);
  return slab;
}

// AdamW on whole parameters, an element at a time, its moments through 8 bits after every step.
at::Tensor plain_run(const AdamW& rule, int steps) {
  at::Tensor master = slab_of(0).clone();
  for (const auto& [begin, numel] : {std::pair{int64_t{0}, Cut::kFirst}, {Cut::kSecondAt, Cut::kSecond}}) {
    std::vector<float> m(numel, 0), v(numel, 0);
    float* const p = master.mutable_data_ptr<float>() + begin;
    for (int step = 1; step <= steps; ++step) {
      const at::Tensor all = slab_of(step);
      const float* const gradients = all.const_data_ptr<float>() + begin;
      const auto b1 = static_cast<float>(rule.beta1), n1 = static_cast<float>(1 - rule.beta1),
                 b2 = static_cast<float>(rule.beta2), n2 = static_cast<float>(1 - rule.beta2);
      const auto root = static_cast<float>(1 / std::sqrt(1 - std::pow(rule.beta2, step)));
      const auto size = static_cast<float>(rule.lr / (1 - std::pow(rule.beta1, step)));
      const auto decay = static_cast<float>(1 - rule.lr * rule.weight_decay);
      for (int64_t i = 0; i < numel; ++i) {
        const float g = gradients[i] * 0.5F;
        p[i] *= decay;
        m[i] = m[i] * b1 + n1 * g;
        v[i] = v[i] * b2 + n2 * g * g;
        p[i] -= size * m[i] / (std::sqrt(v[i]) * root + static_cast<float>(rule.eps));
      }
      for (int64_t block = 0; block < numel; block += 256) {
        for (auto [moment, map] :
             {std::pair{&m, &DynamicMap::of_signed()}, {&v, &DynamicMap::of_unsigned()}}) {
          float scale = 0;
          const int64_t end = std::min(block + 256, numel);
          for (int64_t i = block; i < end; ++i) scale = std::max(scale, std::fabs((*moment)[i]));
          for (int64_t i = block; i < end && scale > 0; ++i)
            (*moment)[i] = map->value(nearest(*map, (*moment)[i] / scale)) * scale;
        }
      }
    }
  }
  return master;
}

TEST(EightBit, UpdatesAreThoseOfAPlainLoopHoweverShardsAreCut) {
  const AdamW rule{.lr = 1e-2, .weight_decay = 0.1, .states_8bit = true};
  const at::Tensor expected = plain_run(rule, 4);
  std::map<std::string, at::Tensor> first;
  for (const int ranks : {1, 3, 9}) {
    Cut cut(ranks);
    const auto optimizer = make_shard_optimizer(rule, {}, cut.states, cut.shards, 2);
    cut.set(cut.masters, slab_of(0));
    const std::vector<char> used(2, 1);
    for (int step = 1; step <= 4; ++step) {
      cut.set(cut.gradients, slab_of(step));
      optimizer->step({.gradient_scale = 0.5, .lr = rule.lr, .used = used});
    }
    EXPECT_TRUE(at::equal(at::cat(cut.masters), expected)) << ranks;
    for (const std::string& kind : optimizer->state_names()) {
      const at::Tensor all = cut.whole(kind, kind.ends_with("_scales") ? 256 : 1);
      if (ranks == 1) first[kind] = all;
      EXPECT_TRUE(at::equal(all, first.at(kind))) << kind << ", " << ranks;
    }
    EXPECT_EQ(first.size(), 4u);
  }
}

TEST(EightBit, AFreshStartClearsWhatIsFresh) {
  Cut cut(3);
  const auto optimizer = make_shard_optimizer(AdamW{.states_8bit = true}, {}, cut.states, cut.shards, 2);
  cut.set(cut.gradients, slab_of(1));
  const std::vector<char> used(2, 1);
  optimizer->step({.lr = 1e-3, .used = used});
  const at::Tensor before = cut.whole("exp_avg_scales", 256);
  EXPECT_GT(before.narrow(0, 0, 7).min().item<float>(), 0) << "the others are padding";
  optimizer->set_parameter_steps(std::vector<int64_t>{0, 1});
  const at::Tensor after = cut.whole("exp_avg_scales", 256);
  EXPECT_EQ(after.narrow(0, 0, 4).abs().max().item<float>(), 0);
  EXPECT_TRUE(at::equal(after.narrow(0, 4, 3), before.narrow(0, 4, 3)));
}

TEST(EightBit, ShardsThatCutABlockAreRefused) {
  Cut cut(1);
  cut.shards[0].segments[1].begin += 32;
  cut.shards[0].segments[1].counted_begin += 32;
  EXPECT_ERROR(make_shard_optimizer(AdamW{.states_8bit = true}, {}, cut.states, cut.shards, 2), Usage,
               "p1: its moments in 8 bits begin inside a block");
}

}  // namespace
}  // namespace zero

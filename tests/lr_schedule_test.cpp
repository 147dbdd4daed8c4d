// Schedules against DeepSpeed's recorded rates (golden/lr_schedules.json) and against their own words.
#include "zero/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"

namespace zero {
namespace {

using Json = nlohmann::json;

template <class T>
void read(const Json& params, const char* key, T& field) {
  if (params.contains(key)) field = params.at(key).get<T>();
}
template <class T>
void read(const Json& params, const char* key, std::optional<T>& field) {
  if (params.contains(key)) field = params.at(key).get<T>();
}
void read(const Json& params, WarmupCurve& field) {
  if (params.contains("warmup_type"))
    field = params["warmup_type"] == "linear" ? WarmupCurve::Linear : WarmupCurve::Log;
}

#define READ(field) read(params, #field, spec.field)

LrScheduleSpec parse_warmup(const std::string& type, const Json& params) {
  if (type == "WarmupLR") {
    WarmupLr spec;
    READ(warmup_min_lr), READ(warmup_max_lr), READ(warmup_num_steps), read(params, spec.warmup_type);
    return spec;
  }
  if (type == "WarmupDecayLR") {
    WarmupDecayLr spec;
    READ(total_num_steps), READ(warmup_min_lr), READ(warmup_max_lr), READ(warmup_num_steps);
    read(params, spec.warmup_type);
    return spec;
  }
  WarmupCosineLr spec;
  READ(total_num_steps), READ(warmup_min_ratio), READ(warmup_num_steps), READ(cos_min_ratio);
  read(params, spec.warmup_type);
  return spec;
}

LrScheduleSpec parse(const std::string& type, const Json& params) {
  if (type == "LRRangeTest") {
    LrRangeTest spec;
    READ(lr_range_test_min_lr), READ(lr_range_test_step_size), READ(lr_range_test_step_rate);
    READ(lr_range_test_staircase);
    return spec;
  }
  if (type != "OneCycle") return parse_warmup(type, params);
  OneCycleLr spec;
  READ(cycle_min_lr), READ(cycle_max_lr), READ(decay_lr_rate), READ(cycle_first_step_size);
  READ(cycle_second_step_size), READ(cycle_first_stair_count), READ(cycle_second_stair_count),
      READ(decay_step_size);
  READ(cycle_momentum), READ(cycle_min_mom), READ(cycle_max_mom), READ(decay_mom_rate);
  return spec;
}

TEST(LrSchedule, GivesWhatDeepSpeedGives) {
  std::ifstream file(std::string(ZERO_TEST_DATA) + "/golden/lr_schedules.json");
  ASSERT_TRUE(file);
  const Json golden = Json::parse(file);
  ASSERT_GE(golden["cases"].size(), 16U);
  for (const auto& one : golden["cases"]) {
    SCOPED_TRACE(one["type"].get<std::string>() + one["params"].dump());
    const LrSchedule schedule(parse(one["type"], one["params"]));
    ASSERT_GE(one["lr"].size(), 60U);
    for (size_t k = 0; k < one["lr"].size(); ++k) {
      const double expected = one["lr"][k];
      EXPECT_NEAR(schedule.lr_at(static_cast<int64_t>(k), one["base_lr"]), expected, 1e-13 * expected)
          << "step " << k;
      const auto betas = schedule.betas_at(static_cast<int64_t>(k));
      ASSERT_EQ(betas.has_value(), one.contains("betas"));
      if (!betas) continue;
      EXPECT_NEAR(betas->beta1, one["betas"][k][0].get<double>(), 1e-14) << "step " << k;
      EXPECT_EQ(betas->beta2, one["betas"][k][1].get<double>());
    }
  }
}

TEST(LrSchedule, ConstantAfterWarmup) {
  const LrSchedule plain, warm(ConstantLr{.warmup_steps = 3});
  EXPECT_EQ(plain.lr_at(0, 0.5), 0.5);
  EXPECT_EQ(plain.lr_at(1'000'000'000'000, 0.5), 0.5);
  const double expected[] = {0.125, 0.25, 0.375, 0.5, 0.5};
  for (int64_t k = 0; k < 5; ++k) EXPECT_EQ(warm.lr_at(k, 0.5), expected[k]);
}

TEST(LrSchedule, LinearMeetsItsCorners) {
  const LrSchedule schedule(LinearLr{.warmup_steps = 4, .total_steps = 14, .min_ratio = 0.1});
  EXPECT_DOUBLE_EQ(schedule.lr_at(0, 1), 0.2);
  EXPECT_DOUBLE_EQ(schedule.lr_at(3, 1), 0.8);
  EXPECT_DOUBLE_EQ(schedule.lr_at(4, 1), 1.0);
  EXPECT_DOUBLE_EQ(schedule.lr_at(9, 1), 0.55);
  EXPECT_DOUBLE_EQ(schedule.lr_at(14, 1), 0.1);
  EXPECT_DOUBLE_EQ(schedule.lr_at(1000, 1), 0.1);
}

TEST(LrSchedule, CosineMeetsItsCorners) {
  const LrSchedule schedule(CosineLr{.warmup_steps = 4, .total_steps = 16, .min_ratio = 0.1});
  EXPECT_DOUBLE_EQ(schedule.lr_at(1, 2), 0.8);
  EXPECT_DOUBLE_EQ(schedule.lr_at(4, 2), 2.0);
  EXPECT_DOUBLE_EQ(schedule.lr_at(8, 2), 2 * (0.1 + 0.9 * 0.75));  // a third of the way: cos 60 degrees
  EXPECT_DOUBLE_EQ(schedule.lr_at(10, 2), 1.1);
  EXPECT_DOUBLE_EQ(schedule.lr_at(16, 2), 0.2);
  EXPECT_DOUBLE_EQ(schedule.lr_at(17, 2), 0.2);
  for (int64_t k = 4; k < 16; ++k) EXPECT_GT(schedule.lr_at(k, 2), schedule.lr_at(k + 1, 2));
}

TEST(LrSchedule, PolynomialOfPowerOneIsLinear) {
  const LrSchedule one(PolynomialLr{.warmup_steps = 4, .total_steps = 14, .min_ratio = 0.1});
  const LrSchedule linear(LinearLr{.warmup_steps = 4, .total_steps = 14, .min_ratio = 0.1});
  for (int64_t k = 0; k < 20; ++k) EXPECT_DOUBLE_EQ(one.lr_at(k, 3), linear.lr_at(k, 3)) << k;
  const LrSchedule square(PolynomialLr{.total_steps = 10, .power = 2});
  EXPECT_DOUBLE_EQ(square.lr_at(0, 1), 1);
  EXPECT_DOUBLE_EQ(square.lr_at(5, 1), 0.25);
  EXPECT_DOUBLE_EQ(square.lr_at(9, 1), 0.01);
  EXPECT_EQ(square.lr_at(10, 1), 0);
}

TEST(LrSchedule, InverseSqrtHalvesAfterThreeTimescales) {
  const LrSchedule schedule(InverseSqrtLr{.warmup_steps = 100});
  EXPECT_DOUBLE_EQ(schedule.lr_at(49, 1), 50.0 / 101);
  EXPECT_DOUBLE_EQ(schedule.lr_at(100, 1), 1);
  EXPECT_DOUBLE_EQ(schedule.lr_at(400, 1), 0.5);  // sqrt(warmup / step), as in the paper
  EXPECT_DOUBLE_EQ(schedule.lr_at(10'000, 1), 0.1);
  EXPECT_DOUBLE_EQ(LrSchedule(InverseSqrtLr{}).lr_at(30'000, 1), 0.5);
  EXPECT_DOUBLE_EQ(LrSchedule(InverseSqrtLr{.warmup_steps = 10, .timescale = 50}).lr_at(160, 1), 0.5);
}

TEST(LrSchedule, CosineRestartsAtTheirPlaces) {
  const LrSchedule plain(CosineLr{.warmup_steps = 2, .total_steps = 12, .min_ratio = 0.2});
  const LrSchedule one(CosineRestartsLr{.warmup_steps = 2, .total_steps = 12, .min_ratio = 0.2});
  for (int64_t k = 0; k < 15; ++k) EXPECT_DOUBLE_EQ(one.lr_at(k, 1), plain.lr_at(k, 1)) << k;
  // Lengths 10, 20 and 40.
  const LrSchedule growing(CosineRestartsLr{.total_steps = 70, .cycles = 3, .cycle_growth = 2});
  for (int64_t k : {0, 10, 30}) EXPECT_DOUBLE_EQ(growing.lr_at(k, 1), 1) << k;
  for (int64_t k : {5, 20, 50}) EXPECT_NEAR(growing.lr_at(k, 1), 0.5, 1e-12) << k;
  EXPECT_LT(growing.lr_at(29, 1), 0.01);
  EXPECT_EQ(growing.lr_at(70, 1), 0);
  EXPECT_EQ(growing.lr_at(1000, 1), 0);
}

TEST(LrSchedule, WarmupStableDecayMeetsItsCorners) {
  WarmupStableDecayLr spec{.warmup_steps = 4, .total_steps = 100, .decay_steps = 20, .min_ratio = 0.1};
  for (const auto& [shape, quarter] : {std::pair{DecayShape::Linear, 0.75},
                                       {DecayShape::Sqrt, 0.5},
                                       {DecayShape::Cosine, (1 + std::sqrt(0.5)) / 2}}) {
    spec.decay_shape = shape;
    const LrSchedule schedule(spec);
    EXPECT_DOUBLE_EQ(schedule.lr_at(3, 1), 0.8);
    for (int64_t k : {4, 50, 80}) EXPECT_DOUBLE_EQ(schedule.lr_at(k, 1), 1) << k;
    EXPECT_DOUBLE_EQ(schedule.lr_at(85, 1), 0.1 + 0.9 * quarter);
    for (int64_t k : {100, 101, 100'000}) EXPECT_NEAR(schedule.lr_at(k, 1), 0.1, 1e-15) << k;
  }
}

TEST(LrSchedule, RefusesBadValuesByName) {
  EXPECT_ERROR(LrSchedule(PolynomialLr{.total_steps = 5, .power = 0}), Config, "power is 0");
  EXPECT_ERROR(LrSchedule(InverseSqrtLr{.timescale = -1}), Config, "timescale is -1");
  EXPECT_ERROR(LrSchedule(CosineRestartsLr{.total_steps = 5, .cycles = 0}), Config, "cycles is 0");
  EXPECT_ERROR(LrSchedule(CosineRestartsLr{.total_steps = 5, .cycles = 1000, .cycle_growth = 10}), Config,
               "cycle_growth is 10");
  EXPECT_ERROR(LrSchedule(WarmupStableDecayLr{.warmup_steps = 3, .total_steps = 5, .decay_steps = 3}), Config,
               "decay_steps is 3");
  EXPECT_ERROR(LrSchedule(ConstantLr{.warmup_steps = -1}), Config, "warmup_steps is -1");
  EXPECT_ERROR(LrSchedule(LinearLr{.warmup_steps = 5, .total_steps = 5}), Config, "total_steps is 5");
  EXPECT_ERROR(LrSchedule(CosineLr{.total_steps = 5, .min_ratio = 1.5}), Config, "min_ratio is 1.5");
  EXPECT_ERROR(LrSchedule(WarmupLr{.warmup_num_steps = 0}), Config, "WarmupLR: warmup_num_steps is 0");
  EXPECT_ERROR(LrSchedule(WarmupLr{.warmup_max_lr = -1e-9}), Config, "warmup_max_lr is -1e-09");
  EXPECT_ERROR(LrSchedule(WarmupDecayLr{}), Config, "WarmupDecayLR: total_num_steps is 0");
  EXPECT_ERROR(LrSchedule(WarmupCosineLr{.total_num_steps = 9, .cos_min_ratio = -0.5}), Config,
               "cos_min_ratio is -0.5");
  EXPECT_ERROR(LrSchedule(OneCycleLr{.cycle_min_lr = 0.2, .cycle_max_lr = 0.1}), Config,
               "cycle_max_lr is 0.1");
  EXPECT_ERROR(LrSchedule(OneCycleLr{.cycle_max_lr = 0.1, .cycle_second_step_size = 0}), Config,
               "cycle_second_step_size");
  EXPECT_ERROR(LrSchedule(OneCycleLr{.cycle_max_lr = 0.1, .cycle_max_mom = 1}), Config, "cycle_max_mom is 1");
  EXPECT_ERROR(LrSchedule(LrRangeTest{.lr_range_test_step_size = 0}), Config, "lr_range_test_step_size is 0");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_ERROR(LrSchedule(LrRangeTest{.lr_range_test_min_lr = nan}), Config, "lr_range_test_min_lr is nan");
  EXPECT_ERROR(LrSchedule().lr_at(-1, 1), Usage, "step is -1");
}

}  // namespace
}  // namespace zero

// Rules against recorded results of other packages' optimizers, and with the same bits for any number of
// ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "optim/kernels/exact_sum.h"
#include "optim/kernels/kernels.h"
#include "optim/muon.h"
#include "support/cut_ranks.h"
#include "zero/error.h"

namespace zero {
namespace {

using testing::CutRun;
using GoldenJson = nlohmann::json;

OptimizerRule rule_named(const std::string& name) {
  std::optional<OptimizerRule> found;
  for_each_rule([&](const OptimizerRule& rule) {
    if (rule_name(rule) == name) found = rule;
  });
  return found.value();
}

OptimizerRule rule_of_case(const GoldenJson& one) {
  OptimizerRule rule = rule_named(one["rule"]);
  for (const auto& [key, value] : one["params"].items()) {
    const Hyperparameter* const of = hyperparameter(rule, key);
    EXPECT_NE(of, nullptr) << key;
    if (of->kind == Hyperparameter::Kind::Switch)
      set_flag(rule, *of, value);
    else if (of->kind == Hyperparameter::Kind::Pair)
      set_numbers(rule, *of, {value[0], value[1]});
    else
      set_numbers(rule, *of, {value, 0});
  }
  validate_rule(rule);
  return rule;
}

void expect_recorded(const at::Tensor& actual, const GoldenJson& recorded, int64_t stride, double tolerance,
                     const std::string& what) {
  ASSERT_EQ((actual.numel() + stride - 1) / stride, std::ssize(recorded)) << what;
  for (int64_t i = 0; i < std::ssize(recorded); ++i)
    ASSERT_NEAR(actual[i * stride].item<float>(), recorded[i].get<double>(), tolerance) << what << ", " << i;
}

TEST(OptimizerGolden, RulesAreThoseOfOtherPackages) {
  std::ifstream file(std::string(ZERO_TEST_DATA) + "/golden/optimizer_rules.json");
  ASSERT_TRUE(file);
  const GoldenJson golden = GoldenJson::parse(file);
  ASSERT_GE(golden["cases"].size(), 8U);
  for (const auto& one : golden["cases"]) {
    const std::string what = one["rule"].get<std::string>() + " " + one["params"].dump();
    const CutRun run = testing::run_on_threads(rule_of_case(one), 2, golden["steps"]);
    // Products of bf16 round as the processor's instructions do.
    const double tolerance = one["rule"] == "Muon" ? 1e-4 : 2e-6;
    expect_recorded(run.matrix, one["matrix"], golden["stride"], tolerance, what + ", matrix");
    expect_recorded(run.vector, one["vector"], golden["stride"], tolerance, what + ", vector");
  }
}

void expect_same_for_any_ranks(const OptimizerRule& rule) {
  const CutRun alone = testing::run_on_threads(rule, 1, 4, 0.37);
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8}) {
    const CutRun cut = testing::run_on_threads(rule, ranks, 4, 0.37);
    EXPECT_TRUE(at::equal(cut.matrix, alone.matrix)) << rule_name(rule) << ", " << ranks;
    EXPECT_TRUE(at::equal(cut.vector, alone.vector)) << rule_name(rule) << ", " << ranks;
    for (size_t kind = 0; kind < cut.means.size(); ++kind)
      EXPECT_TRUE(at::equal(cut.means[kind], alone.means[kind])) << rule_name(rule) << ", " << ranks;
    for (size_t kind = 0; kind < cut.states.size(); ++kind)
      EXPECT_TRUE(at::equal(cut.states[kind], alone.states[kind])) << rule_name(rule) << ", " << ranks;
  }
}

TEST(OptimizerGolden, BitsAreTheSameForOneToEightRanks) {
  for_each_rule([](const OptimizerRule& rule) { expect_same_for_any_ranks(rule); });
  for (const NamedRule& named : named_rules()) expect_same_for_any_ranks(named.rule);
  expect_same_for_any_ranks(LAMB{.lr = 0.02, .weight_decay = 0.1});
  expect_same_for_any_ranks(Muon{.lr = 0.02, .match_rms_adamw = true});
  expect_same_for_any_ranks(Adafactor{.weight_decay = 0.1, .beta1 = 0.8, .warmup_init = true});
  expect_same_for_any_ranks(Adafactor{.scale_parameter = false, .relative_step = false, .torch_form = true});
  expect_same_for_any_ranks(LARS{.weight_decay = 0.1, .trust_coefficient = 0.1, .nesterov = true});
}

TEST(OptimizerGolden, VariantsOfLambDiffer) {
  const auto of = [](LAMB rule) {
    rule.lr = 0.02;
    return testing::run_on_threads(rule, 1, 3).matrix.clone();
  };
  const LAMB nvlamb{.weight_decay = 0}, apex{.weight_decay = 0, .undecayed_ratio = false};
  EXPECT_FALSE(at::equal(of(nvlamb), of(apex)));
  const LAMB decayed{.weight_decay = 0.1}, apex_decayed{.weight_decay = 0.1, .undecayed_ratio = false};
  EXPECT_TRUE(at::equal(of(decayed), of(apex_decayed)));
  const LAMB bounded{.weight_decay = 0.1, .max_coeff = 0.1};
  EXPECT_FALSE(at::equal(of(decayed), of(bounded)));
}

// Rows and columns whose gradients are of all sizes, or nothing.
TEST(Adafactor, MeansAreThoseOfWholeRowsAndColumns) {
  const auto step = [](const at::Tensor& gradient, const Adafactor& rule) {
    const at::NoGradGuard no_grad;
    const int64_t numel = gradient.numel();
    StateStore store;
    at::Tensor master = at::ones({numel}), flat = gradient.reshape({-1}).clone();
    store.adopt(0, kMasterState, master);
    store.adopt(0, kGradientState, flat);
    OptimizerShard shard{.unit = 0};
    shard.segments.push_back({.name = "w", .end = numel, .counted_end = numel, .summed_end = numel});
    shard.factored = {{0, "w", gradient.sizes().vec()}};
    const auto optimizer = make_shard_optimizer(rule, {}, store, {shard}, 1);
    const std::vector<char> used(1, 1);
    optimizer->step({.lr = rule.lr, .used = used});
    const auto of = [&](const char* kind) {
      return store.lend(0, {std::string_view(kind)}, StateStore::Use::Read)[kind].clone();
    };
    return std::array{of("exp_avg_sq_row"), of("exp_avg_sq_col"), master};
  };
  at::Tensor gradient = testing::drawn(3 * 20 * 70, 5).view({3, 20, 70});
  gradient.mul_(at::logspace(-9, 9, 70)).mul_(at::logspace(-4, 4, 20).unsqueeze(1));
  gradient.select(1, 4).zero_();
  gradient.select(2, 9).zero_();
  const auto [rows, columns, master] = step(gradient, Adafactor{.eps = 0});
  const at::Tensor squares = gradient.to(at::kDouble).square();
  EXPECT_TRUE(at::allclose(rows.to(at::kDouble), squares.mean(2).flatten(), 1e-6, 0));
  EXPECT_TRUE(at::allclose(columns.to(at::kDouble), squares.mean(1).flatten(), 1e-6, 0));
  EXPECT_TRUE(master.isfinite().all().item<bool>());
  EXPECT_TRUE(master.view({3, 20, 70}).select(1, 4).eq(1).all().item<bool>()) << "no gradient, no change";
  EXPECT_FALSE(master.eq(1).all().item<bool>());
}

TEST(Muon, WorkIsSharedOut) {
  std::vector<muon::Task> tasks;
  for (const int64_t width : {64, 8, 8, 8, 32, 32})
    tasks.push_back({.unit = 0, .matrix = {.parameter = 0, .offset = 0, .rows = width, .cols = 64}});
  muon::share_out(tasks, 2);
  EXPECT_EQ(tasks[0].owner, 0);
  EXPECT_EQ(tasks[4].owner, 1) << "the largest is as much as the others together";
  EXPECT_EQ(tasks[5].owner, 1);
  std::vector<int> owners;
  for (const muon::Task& task : tasks) owners.push_back(task.owner);
  EXPECT_GT(std::count(owners.begin(), owners.end(), 1), 2);
}

TEST(Muon, MakesMatricesNearlyOrthogonal) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{24, 40}, {40, 24}, {16, 16}}) {
    const at::Tensor matrix = testing::drawn(rows * cols, 3).view({rows, cols});
    const at::Tensor made = muon::orthogonalised(matrix).to(at::kFloat);
    ASSERT_EQ(made.sizes(), matrix.sizes());
    const at::Tensor gram = rows > cols ? made.t().matmul(made) : made.matmul(made.t());
    const at::Tensor off = gram - at::diag(gram.diagonal());
    EXPECT_LT(gram.diagonal().max().item<float>(), 1.6);
    EXPECT_LT(off.abs().max().item<float>(), 0.5);
  }
  EXPECT_EQ(muon::orthogonalised(at::zeros({3, 4})).abs().max().item<float>(), 0);
  EXPECT_DOUBLE_EQ(muon::rate_factor(Muon{}, 40, 10), 2);
  EXPECT_DOUBLE_EQ(muon::rate_factor(Muon{}, 10, 40), 1);
  EXPECT_DOUBLE_EQ(muon::rate_factor(Muon{.match_rms_adamw = true}, 25, 100), 2);
}

using kernels::add_exactly;
using kernels::carry_digits;
using kernels::kDigits;
using kernels::total_of;

TEST(ExactSum, DoesNotDependOnOrderOrCuts) {
  std::mt19937_64 random(3);
  std::vector<double> values;
  for (int i = 0; i < 5000; ++i) {
    const auto value =
        std::ldexp(1.0 + static_cast<double>(random() % 1000003), static_cast<int>(random() % 200) - 120);
    values.push_back(static_cast<double>(static_cast<float>(value)) * 1.7);
  }
  double forward[kDigits] = {}, parts[3][kDigits] = {}, one_by_one = 0;
  for (const double value : values) {
    add_exactly(value, forward);
    one_by_one += value;
  }
  std::shuffle(values.begin(), values.end(), random);
  for (size_t i = 0; i < values.size(); ++i) add_exactly(values[i], parts[i * i % 3]);
  double together[kDigits];
  for (int i = 0; i < kDigits; ++i) together[i] = parts[2][i] + (parts[0][i] + parts[1][i]);
  for (int i = 0; i < kDigits; ++i) EXPECT_EQ(together[i], forward[i]);
  EXPECT_EQ(total_of(together), total_of(forward));
  EXPECT_NEAR(total_of(forward) / one_by_one, 1, 1e-12);
}

TEST(ExactSum, SquaresHaveEqualDigitsHoweverTheyAreCut) {
  std::mt19937_64 random(7);
  std::vector<float> values(3001);
  for (float& value : values)
    value = static_cast<float>(
        std::ldexp(static_cast<double>(random() % 1000003) - 5e5, static_cast<int>(random() % 200) - 150));
  double one_by_one[kDigits] = {};
  for (const float value : values) add_exactly(static_cast<double>(value) * value, one_by_one);
  carry_digits(one_by_one);
  for (const kernels::KernelSet* const set : kernels::available_kernels()) {
    const auto add = set->factored.squares_exactly;
    double together[kDigits] = {}, cut[kDigits] = {}, infinite[kDigits] = {};
    add(values.data(), std::ssize(values), together);
    std::shuffle(values.begin(), values.end(), random);
    for (int64_t from = 0; from < std::ssize(values); from += 97)
      add(values.data() + from, std::min(int64_t{97}, std::ssize(values) - from), cut);
    for (int i = 0; i < kDigits; ++i) {
      EXPECT_EQ(together[i], one_by_one[i]) << set->name << " " << i;
      EXPECT_EQ(cut[i], one_by_one[i]) << set->name << " " << i;
    }
    const std::array bad{1.0F, HUGE_VALF, 2.0F};
    add(bad.data(), std::ssize(bad), infinite);
    EXPECT_FALSE(std::isfinite(total_of(infinite))) << set->name;
  }
}

TEST(ExactSum, ReachesFromTheSmallestSquareToTheLargest) {
  const double smallest = std::ldexp(1.0, -298), largest = std::ldexp(255.0, 256);
  for (const double value : {smallest, 3 * smallest, 1.0, 1 / 3.0, 1e-30, largest}) {
    double digits[kDigits] = {};
    add_exactly(value, digits);
    EXPECT_EQ(total_of(digits), value);
  }
  double digits[kDigits] = {};
  add_exactly(smallest, digits);
  add_exactly(largest, digits);
  EXPECT_EQ(digits[0], 1) << "nothing is lost beside a large one";
  for (const double bad : {HUGE_VAL, std::nan("")}) {
    double sum[kDigits] = {};
    add_exactly(1, sum);
    add_exactly(bad, sum);
    EXPECT_FALSE(std::isfinite(total_of(sum)));
  }
}

}  // namespace
}  // namespace zero

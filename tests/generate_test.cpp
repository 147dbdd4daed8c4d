// Sampling: the filters against their definitions, the draw against the distribution, the loop against its
// rules.
#include "zero/generate.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "support/expect_error.h"
#include "support/golden_gpt2.h"

namespace zero {
namespace {

// The definition, token by token and without sorting: `a` stands before `b`.
bool before(const std::vector<float>& logits, size_t a, size_t b) {
  return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

std::map<int64_t, double> brute_force(const std::vector<float>& logits, const GenerateOptions& options) {
  const size_t n = logits.size();
  std::vector<double> weight(n);
  double highest = -INFINITY;
  for (float logit : logits) highest = std::max<double>(highest, logit);
  for (size_t i = 0; i < n; i++) weight[i] = std::exp((logits[i] - highest) / options.temperature);
  auto mass = [&] {
    double sum = 0;
    for (double w : weight) sum += w;
    return sum;
  };
  std::vector<double> kept = weight;
  for (size_t i = 0; i < n && options.top_k > 0; i++) {
    int64_t ahead = 0;
    for (size_t j = 0; j < n; j++) ahead += before(logits, j, i);
    if (ahead >= options.top_k) kept[i] = 0;
  }
  weight = kept;
  const double total = mass();
  for (size_t i = 0; i < n; i++) {
    double ahead = 0;
    for (size_t j = 0; j < n; j++) ahead += before(logits, j, i) ? weight[j] / total : 0;
    if (options.top_p < 1 && ahead >= options.top_p) kept[i] = 0;
  }
  weight = kept;
  std::map<int64_t, double> result;
  const double rest = mass();
  for (size_t i = 0; i < n; i++)
    if (weight[i] > 0) result[static_cast<int64_t>(i)] = weight[i] / rest;
  return result;
}

TEST(NextToken, FiltersEqualTheirDefinition) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  for (int trial = 0; trial < 400; trial++) {
    std::vector<float> logits(1 + random() % 40);
    for (float& logit : logits)
      logit = trial % 2 ? normal(random) : std::round(normal(random));  // with and without ties
    if (trial % 5 == 0 && logits.size() > 1) logits[random() % logits.size()] = -INFINITY;
    // Values of top_p that no partial sum of few terms hits exactly.
    const GenerateOptions options{.temperature = 0.3 + 0.137 * (trial % 11),
                                  .top_k = trial % 3 ? static_cast<int64_t>(random() % 45) : 0,
                                  .top_p = trial % 4 ? 0.0171 + 0.0983 * (trial % 10) : 1.0};
    const auto expected = brute_force(logits, options);
    const auto actual = next_token_distribution(logits, options);
    ASSERT_EQ(actual.size(), expected.size()) << "trial " << trial;
    double sum = 0;
    for (size_t i = 0; i < actual.size(); i++) {
      ASSERT_TRUE(expected.contains(actual[i].token)) << "trial " << trial;
      EXPECT_NEAR(actual[i].probability, expected.at(actual[i].token), 1e-12) << "trial " << trial;
      EXPECT_TRUE(i == 0 || before(logits, actual[i - 1].token, actual[i].token)) << "trial " << trial;
      sum += actual[i].probability;
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(NextToken, EdgesOfTheOptions) {
  const std::vector<float> logits{1, 3, 3, -2};
  auto tokens = [&](GenerateOptions options) {
    std::vector<int64_t> result;
    for (const auto& t : next_token_distribution(logits, options)) result.push_back(t.token);
    return result;
  };
  EXPECT_EQ(tokens({.temperature = 0}), (std::vector<int64_t>{1}));
  EXPECT_EQ(tokens({.top_k = 1}), (std::vector<int64_t>{1}));
  EXPECT_EQ(tokens({.top_p = 1e-9}), (std::vector<int64_t>{1}));
  EXPECT_EQ(tokens({.top_k = 100}), (std::vector<int64_t>{1, 2, 0, 3}));
  EXPECT_EQ(tokens({.temperature = 1e-300}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(tokens({.temperature = 1e300}), (std::vector<int64_t>{1, 2, 0, 3}));
}

TEST(NextToken, RefusesWhatItCannotDrawFrom) {
  const std::vector<float> fine{0, 1};
  EXPECT_ERROR(next_token_distribution({}, {}), Usage, "no token has a finite logit");
  EXPECT_ERROR(next_token_distribution(std::vector<float>{0, NAN}, {}), Usage, "the logit of token 1 is");
  EXPECT_ERROR(next_token_distribution(std::vector<float>{INFINITY, 0}, {}), Usage,
               "the logit of token 0 is inf");
  EXPECT_ERROR(next_token_distribution(std::vector<float>{-INFINITY}, {}), Usage,
               "no token has a finite logit");
  EXPECT_ERROR(next_token_distribution(fine, {.temperature = -0.1}), Config, "generate temperature");
  EXPECT_ERROR(next_token_distribution(fine, {.temperature = NAN}), Config, "generate temperature");
  EXPECT_ERROR(next_token_distribution(fine, {.top_k = -1}), Config, "generate top_k");
  EXPECT_ERROR(next_token_distribution(fine, {.top_p = 0}), Config, "0 < top_p <= 1");
  EXPECT_ERROR(next_token_distribution(fine, {.top_p = 1.01}), Config, "0 < top_p <= 1");
  EXPECT_ERROR(next_token_distribution(fine, {.top_p = NAN}), Config, "0 < top_p <= 1");
}

// A model that always says the same.
LogitsFunction constant(std::vector<float> logits) {
  return [logits](const torch::Tensor& tokens) {
    return torch::tensor(logits).expand({1, tokens.size(1), static_cast<int64_t>(logits.size())});
  };
}

TEST(Generate, DrawsFromTheDistribution) {
  const std::vector<float> logits{0, 1, 2, -1};
  const GenerateOptions options{.max_new_tokens = 20000, .temperature = 0.8, .top_k = 3, .seed = 7};
  const auto text = generate_tokens(constant(logits), std::vector<int64_t>{0}, 4, options);
  std::map<int64_t, double> counts;
  for (int64_t token : text) counts[token]++;
  const double n = 20000;
  double chi_square = 0;
  for (const auto& [token, p] : brute_force(logits, options))
    chi_square += std::pow(counts[token] - n * p, 2) / (n * p);
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_LT(chi_square,
            13.8);  // two degrees of freedom: exceeded once in a thousand seeds, and this seed is fixed
}

TEST(Generate, SameSeedSameTextAndLeavesTheDefaultGeneratorAlone) {
  const auto shape = golden::recording().shape;
  auto model = golden::make_model(shape);
  auto logits_of = [&](const torch::Tensor& tokens) { return model->forward(tokens); };
  const std::vector<int64_t> prompt{3, 1, 4};
  auto text = [&](uint64_t seed) {
    return generate_tokens(logits_of, prompt, shape.context_length, {.max_new_tokens = 40, .seed = seed});
  };
  torch::manual_seed(0);
  const auto expected = torch::rand({4});
  torch::manual_seed(0);
  const auto first = text(1);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
  EXPECT_EQ(first.size(), 40u);
  EXPECT_EQ(text(1), first);
  EXPECT_NE(text(2), first);
}

TEST(Generate, GreedyFollowsTheModelsRule) {
  // Says t + 2 after t, loudly.
  auto logits_of = [](const torch::Tensor& tokens) {
    return torch::one_hot((tokens + 2).remainder(10), 10).to(torch::kBFloat16) * 5;
  };
  const GenerateOptions greedy{.max_new_tokens = 6, .temperature = 0};
  EXPECT_EQ(generate_tokens(logits_of, std::vector<int64_t>{1}, 8, greedy),
            (std::vector<int64_t>{3, 5, 7, 9, 1, 3}));
  GenerateOptions stopping = greedy;
  for (const std::vector<int64_t>& tokens : {std::vector<int64_t>{9}, {8, 9}, {9, 1}}) {
    stopping.stop_tokens = tokens;
    EXPECT_EQ(generate_tokens(logits_of, std::vector<int64_t>{1}, 8, stopping),
              (std::vector<int64_t>{3, 5, 7}));
  }
  EXPECT_TRUE(generate_tokens(logits_of, std::vector<int64_t>{1}, 8, {.max_new_tokens = 0}).empty());
}

TEST(Generate, SlidesTheWindowAndRunsWithoutGradients) {
  std::vector<std::vector<int64_t>> seen;
  auto logits_of = [&](const torch::Tensor& tokens) {
    EXPECT_FALSE(torch::GradMode::is_enabled());
    EXPECT_EQ(tokens.size(0), 1);
    seen.emplace_back(tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + tokens.numel());
    return torch::one_hot(tokens + 1, 50).to(torch::kFloat);
  };
  const GenerateOptions greedy{.max_new_tokens = 3, .temperature = 0};
  EXPECT_EQ(generate_tokens(logits_of, std::vector<int64_t>{1, 2, 3}, 4, greedy),
            (std::vector<int64_t>{4, 5, 6}));
  EXPECT_EQ(seen, (std::vector<std::vector<int64_t>>{{1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}}));
  seen.clear();
  generate_tokens(logits_of, std::vector<int64_t>{1, 2, 3, 4, 5, 6}, 4,
                  {.max_new_tokens = 1, .temperature = 0});
  EXPECT_EQ(seen, (std::vector<std::vector<int64_t>>{{3, 4, 5, 6}}));
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(Generate, RefusesBadCalls) {
  const auto logits_of = constant({0, 1});
  const std::vector<int64_t> prompt{0};
  EXPECT_ERROR(generate_tokens(logits_of, {}, 4), Config, "the prompt holds no token");
  EXPECT_ERROR(generate_tokens(logits_of, prompt, 0), Config,
               "generate context_length: expected 1 or more, got 0");
  EXPECT_ERROR(generate_tokens(logits_of, prompt, 4, {.max_new_tokens = -1}), Config,
               "generate max_new_tokens");
  auto flat = [](const torch::Tensor&) { return torch::zeros({5}); };
  EXPECT_ERROR(generate_tokens(flat, prompt, 4), Usage,
               "expected logits of shape [1, positions, vocabulary]");
}

}  // namespace
}  // namespace zero

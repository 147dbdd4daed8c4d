// resolve(): batch sizes against a brute-force rule, and everything else that follows from other values.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "support/config_text.h"

namespace zero {
namespace {

using test::parse;

struct Batch {
  int64_t train, micro, accumulation;
  bool operator==(const Batch&) const = default;
};

// Written from DeepSpeed's documentation, not from resolve(): every completion of the given values (0: not
// given) that multiplies, where a missing accumulation beside a missing micro or train batch is 1.
std::optional<Batch> brute_force(Batch given, int64_t ranks) {
  if (given.train == 0 && given.micro == 0) return std::nullopt;
  const bool accumulation_is_one = given.accumulation == 0 && (given.train == 0 || given.micro == 0);
  std::optional<Batch> found;
  for (int64_t micro = 1; micro <= 64; micro++) {
    for (int64_t accumulation = 1; accumulation <= 64; accumulation++) {
      const Batch b{micro * accumulation * ranks, micro, accumulation};
      if (given.train && b.train != given.train) continue;
      if (given.micro && b.micro != given.micro) continue;
      if (given.accumulation && b.accumulation != given.accumulation) continue;
      if (accumulation_is_one && accumulation != 1) continue;
      EXPECT_FALSE(found) << "the rule is ambiguous";
      found = b;
    }
  }
  return found;
}

std::optional<Batch> resolved(Batch given, int ranks) {
  Config config;
  config.train_batch_size = given.train;
  config.train_micro_batch_size = given.micro;
  config.gradient_accumulation_steps = given.accumulation;
  try {
    config = resolve(config, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Config);
    return std::nullopt;
  }
  return Batch{config.train_batch_size, config.train_micro_batch_size, config.gradient_accumulation_steps};
}

TEST(ConfigBatch, InferenceEqualsTheBruteForceRule) {
  int solvable = 0, contradictory = 0;
  for (int ranks = 1; ranks <= 5; ranks++) {
    for (int64_t train : {0, 1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 20, 24, 30, 32, 48, 60}) {
      for (int64_t micro : {0, 1, 2, 3, 4, 5, 8, 16}) {
        for (int64_t accumulation : {0, 1, 2, 3, 4, 7}) {
          const Batch given{train, micro, accumulation};
          const auto expected = brute_force(given, ranks);
          EXPECT_EQ(resolved(given, ranks), expected)
              << train << " " << micro << " " << accumulation << " x " << ranks;
          ++(expected ? solvable : contradictory);
        }
      }
    }
  }
  EXPECT_GT(solvable, 500);
  EXPECT_GT(contradictory, 500);
}

std::string resolve_error(const std::string& text, int ranks) {
  try {
    resolve(parse(text), ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ConfigBatch, ContradictionsNameAllThreeAndTheProduct) {
  EXPECT_EQ(resolve_error("{\n\"train_batch_size\": 32,\n\"train_micro_batch_size_per_gpu\": 4,\n"
                          "\"gradient_accumulation_steps\": 2}",
                          3),
            "config error: f:2: train_batch_size: expected train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps x ranks, got train_batch_size 32 but 4 x 2 x 3 = 24; change one of "
            "the three "
            "or the number of ranks");
  EXPECT_EQ(resolve_error("{\"train_batch_size\": 32,\n\"train_micro_batch_size_per_gpu\": 3}", 2),
            "config error: f:1: train_batch_size: expected train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps x ranks, got train_batch_size 32 but 3 x 5 (inferred) x 2 = 30; "
            "change one of "
            "the three or the number of ranks");
  EXPECT_EQ(
      resolve_error("{\n\"gradient_accumulation_steps\": 2}", 2),
      "config error: f:2: train_batch_size: expected train_batch_size or train_micro_batch_size_per_gpu, got "
      "neither; write train_micro_batch_size_per_gpu, samples that a rank takes at a time");
  EXPECT_EQ(
      resolve_error("{}", 2),
      "config error: f: train_batch_size: expected train_batch_size or train_micro_batch_size_per_gpu, got "
      "neither; write train_micro_batch_size_per_gpu, samples that a rank takes at a time");
}

TEST(ConfigBatch, ProductsBeyond64BitsAreErrors) {
  EXPECT_EQ(resolved({0, int64_t{1} << 40, int64_t{1} << 40}, 4), std::nullopt);
}

TEST(ConfigBatch, RanksThatShareLayersHaveTheSameSamples) {
  for (
      const char* text :
      {R"({"train_micro_batch_size_per_gpu": 3, "parallel": {"tensor": 2, "sequence": true}})",
       R"({"train_micro_batch_size_per_gpu": 3, "tensor_parallel": {"autotp_size": 2}})",
       R"({"train_micro_batch_size_per_gpu": 3, "tensor_parallel_size": 2, "disable_sequence_parallel": false})"}) {
    const Config config = resolve(parse_config(text), 4);
    EXPECT_EQ(config.parallel.tensor, 2);
    EXPECT_EQ(config.train_batch_size, 6);
  }
  EXPECT_EQ(parse_config(R"({"tensor_parallel": {"autotp_size": 0}})").parallel.tensor, 1);
  const Config neuron = parse_config(
      R"({"tensor_parallel_size": 2, "disable_sequence_parallel": true, "disable_embedding_parallelization": true,
          "pipeline_parallel_size": 4})");
  EXPECT_EQ(neuron.parallel.pipeline, 4);
  EXPECT_FALSE(neuron.parallel.sequence);
  EXPECT_FALSE(neuron.parallel.vocabulary);
}

TEST(ConfigBatch, RanksAreChecked) {
  const std::string batch = "\"train_micro_batch_size_per_gpu\": 1";
  EXPECT_EQ(resolve_error("{" + batch + ",\n\"parallel\": {\n\"ranks\": 4}}", 3),
            "config error: f:3: parallel.ranks: expected 3, the number of ranks that run, got 4; start that "
            "many ranks "
            "or remove the key");
  EXPECT_EQ(resolve_error("{" + batch + ", \"parallel\": {\"ranks\": 4}}", 4), "");
  EXPECT_EQ(resolve_error("{" + batch + ", \"parallel\": {\"tensor\": 1, \"pipeline\": 1}}", 4), "");
  EXPECT_EQ(resolve_error("{" + batch + ",\n\"parallel\": {\n\"tensor\": 3}}", 4),
            "config error: f:3: parallel.tensor: expected a divisor of the 4 ranks, got 3");
  EXPECT_EQ(
      resolve_error("{" + batch + ",\n\"parallel\": {\n\"sequence\": true}}", 4),
      "config error: f:3: parallel.sequence: the sequence is cut over the ranks that share a layer, and "
      "parallel.tensor is 1; set parallel.tensor, or remove the key");
  EXPECT_EQ(resolve_error("{" + batch + ",\n\"parallel\": {\n\"pipeline\": 3}}", 4),
            "config error: f:3: parallel.pipeline: expected a divisor of the 4 ranks, got 3");
  EXPECT_EQ(resolve_error("{" + batch + ", \"parallel\": {\"pipeline\": 4}}", 4), "");
  EXPECT_EQ(
      resolve_error("{" + batch + ",\n\"zero_optimization\": {\"stage\": 3,\n\"mics_shard_size\": 2}}", 3),
      "config error: f:3: parallel.shard_group: expected a divisor of the 3 ranks, got 2");
  EXPECT_NE(
      resolve_error("{" + batch + ", \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 8}}", 4), "");
  EXPECT_EQ(
      resolve_error("{" + batch + ", \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2}}", 4), "");
  EXPECT_THROW(resolve(Config{}, 0), Error);
}

// A batch is shared out among the ranks that have other samples.
TEST(ConfigBatch, RanksOfAPipelineShareSamples) {
  const Config c = resolve(parse(R"({"train_batch_size": 24, "gradient_accumulation_steps": 3,
                                     "pipeline": {"stages": 2, "partition": "parameters"}})"),
                           4);
  EXPECT_EQ(c.train_micro_batch_size, 4);
  EXPECT_EQ(c.parallel.pipeline, 2);
  EXPECT_EQ(c.parallel.balance, ParallelConfig::Balance::Parameters);
}

TEST(ConfigResolve, FillsInWhatFollows) {
  Config c = resolve(parse(R"({"train_batch_size": 8, "run": {"seed": 5, "steps": 77},
                               "model": {"context_length": 64},
                               "zero_optimization": {"stage": 3},
                               "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 7}}})"),
                     2);
  EXPECT_EQ(c.train_micro_batch_size, 4);
  EXPECT_EQ(c.gradient_accumulation_steps, 1);
  EXPECT_EQ(c.model.seed, 5);
  EXPECT_EQ(c.data.seed, 5);
  EXPECT_EQ(c.data.sequence_length, 64);
  EXPECT_EQ(c.scheduler.total_num_steps, 77);
  EXPECT_EQ(c.scheduler.warmup_max_lr, 0.001);
  EXPECT_EQ(c.precision.param_dtype, Dtype::f32);
  EXPECT_EQ(c.precision.grad_accum_dtype, Dtype::f32);
  EXPECT_FALSE(c.precision.communication_dtype);
  EXPECT_EQ(c.precision.buffer_dtype, std::nullopt);
  EXPECT_EQ(c.residency.budget_bytes, -1);
  EXPECT_EQ(resolve(c, 2), c);
}

TEST(ConfigResolve, ChecksConfigsMadeByHand) {
  const auto error = [](auto change) {
    Config config;
    config.train_batch_size = 4;
    change(config);
    try {
      resolve(config, 2);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::Config);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(error([](Config&) {}), "");
  EXPECT_NE(error([](Config& c) { c.model.heads = 0; }).find("model.heads: expected an integer from 1"),
            std::string::npos);
  EXPECT_NE(error([](Config& c) { c.model.heads = 7; }).find("model.heads: expected a divisor"),
            std::string::npos);
  EXPECT_NE(
      error([](Config& c) { c.optimizer.rule = AdamW{.lr = std::nan("")}; }).find("optimizer.params.lr"),
      std::string::npos);
  EXPECT_NE(error([](Config& c) { c.zero.stage = 4; }).find("zero_optimization.stage"), std::string::npos);
  EXPECT_NE(error([](Config& c) { c.frozen = {""}; }).find("frozen"), std::string::npos);
}

TEST(ConfigResolve, ByteBudgetsAreTheTighterLimit) {
  const auto budget = [](const std::string& residency, const std::string& zero, bool bf16) {
    const std::string text = "{\"train_batch_size\": 8, \"residency\": {" + residency +
                             "}, \"bf16\": {\"enabled\": " + (bf16 ? "true" : "false") +
                             "}, \"zero_optimization\": {\"stage\": 3" + zero + "}}";
    const Config c = resolve(parse(text), 1);
    return std::pair(c.residency.budget_bytes, c.residency.prefetch_bytes);
  };
  EXPECT_EQ(budget("", "", false), std::pair(int64_t{-1}, int64_t{-1}));
  EXPECT_EQ(budget("", ", \"stage3_max_live_parameters\": 1e3, \"prefetch_bucket_size\": 10", false),
            std::pair(int64_t{4000}, int64_t{40}));
  EXPECT_EQ(budget("", ", \"stage3_max_live_parameters\": 1e3", true).first, 2000);
  EXPECT_EQ(budget("\"budget\": \"1KiB\"", ", \"stage3_max_live_parameters\": 1e3", false).first, 1024);
  EXPECT_EQ(budget("\"budget\": \"all\"", ", \"stage3_max_live_parameters\": 1e3", false).first, 4000);
  EXPECT_EQ(budget("\"budget\": \"all\", \"prefetch\": 0", "", false), std::pair(kAllBytes, int64_t{0}));
}

}  // namespace
}  // namespace zero

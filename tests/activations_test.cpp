// What the plan says of activations against what tensors take.
#include "zero/activations.h"

#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "zero/cpu_allocator.h"
#include "zero/cpu_operators.h"
#include "zero/language_model.h"

namespace zero {
namespace {

constexpr int64_t kBatch = 2, kSequence = 256, kWidth = 512, kVocabulary = 1024;

Gpt2Shape gpt2_of(int64_t layers, double dropout = 0) {
  return {.vocab_size = kVocabulary,
          .context_length = kSequence,
          .layers = layers,
          .width = kWidth,
          .heads = 8,
          .dropout = dropout};
}
LlamaShape llama_of(int64_t layers, int64_t kv_heads, bool tied_head) {
  return {.vocab_size = kVocabulary,
          .context_length = kSequence,
          .layers = layers,
          .width = kWidth,
          .heads = 8,
          .kv_heads = kv_heads,
          .head_width = 64,
          .mlp_width = 1408,
          .tied_head = tied_head};
}
GptNeoxShape neox_of(int64_t layers, bool parallel, bool tied_head) {
  return {.vocab_size = kVocabulary,
          .context_length = kSequence,
          .layers = layers,
          .width = kWidth,
          .heads = 8,
          .mlp_width = 2048,
          .parallel_residual = parallel,
          .tied_head = tied_head};
}

struct Measured {
  int64_t kept;  // after forward
  int64_t peak;  // of forward
};

Measured measure(const ModelShape& shape, Dtype dtype, const RecomputePolicy& recompute = {}) {
  use_training_allocator();
  const auto model = make_language_model(shape);
  model->set_recompute(recompute);
  if (dtype == Dtype::bf16) model->to(torch::kBFloat16);
  const torch::Tensor tokens = torch::randint(kVocabulary, {kBatch, kSequence}, torch::kLong);
  const CpuOperators fast;
  const int64_t before = cpu_allocator_stats().used_bytes;
  const torch::Tensor loss = model->loss(tokens, tokens);
  const CpuAllocatorStats after = cpu_allocator_stats();
  return {after.used_bytes - before, after.peak_bytes - before};
}

std::vector<ModelShape> shapes_of(int64_t layers) {
  return {gpt2_of(layers), llama_of(layers, 8, /*tied_head=*/false), llama_of(layers, 2, /*tied_head=*/true),
          neox_of(layers, /*parallel=*/true, /*tied_head=*/false),
          neox_of(layers, /*parallel=*/false, /*tied_head=*/true)};
}

// Of all layers together, blocks and ends.
TEST(ActivationsOfRecomputedLayers, AreTheirInputs) {
  for (const ModelShape& shape : {ModelShape(gpt2_of(4)), ModelShape(llama_of(4, 2, /*tied_head=*/true))})
    for (const int64_t every : {1, 2}) {
      const RecomputePolicy policy{.every = every};
      const auto planned = activation_bytes(shape, kBatch, kSequence, Dtype::f32, policy);
      const auto without = activation_bytes(shape, kBatch, kSequence, Dtype::f32);
      const auto other = measure(shape, Dtype::f32).kept - without.kept;  // the loss's gradients
      const auto kept = measure(shape, Dtype::f32, policy).kept - other;
      EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(planned.kept), 1, 0.05) << every;
      EXPECT_LT(planned.kept, without.kept);
      EXPECT_GT(planned.again, 0);
    }
}

class Activations : public ::testing::TestWithParam<int> {};

TEST_P(Activations, AreWhatTheLayersKeep) {
  constexpr int64_t kFew = 2, kMany = 5;
  // With LibTorch's operators Llama and GPT-NeoX keep one width a token and layer more, of 17 to 23.
  const double more = CpuOperators::exist() ? 0.01 : 0.06;
  const auto which = static_cast<size_t>(GetParam());
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const ModelShape few = shapes_of(kFew)[which], many = shapes_of(kMany)[which];
    const auto planned = [&](const ModelShape& shape) {
      return activation_bytes(shape, kBatch, kSequence, dtype);
    };
    const int64_t of_layers = measure(many, dtype).kept - measure(few, dtype).kept;
    const double share =
        static_cast<double>(of_layers) / static_cast<double>(planned(many).kept - planned(few).kept);
    EXPECT_GE(share, 0.99) << to_string(dtype);
    EXPECT_LE(share, 1 + more) << to_string(dtype);
    EXPECT_EQ(planned(many).loss, planned(few).loss);
  }
}
INSTANTIATE_TEST_SUITE_P(Models, Activations, ::testing::Range(0, 5));

// In a process of its own, so that nothing before it was larger. Products take some scratch beside.
TEST_P(Activations, AndTheLossAreThePeakOfForward) {
  constexpr double kScratchBytes = 8 << 20;
  const ModelShape shape = shapes_of(6)[static_cast<size_t>(GetParam())];
  const ActivationBytes planned = activation_bytes(shape, kBatch, kSequence, Dtype::f32);
  const auto peak = static_cast<double>(measure(shape, Dtype::f32).peak);
  const auto all = static_cast<double>(planned.kept + planned.loss);
  EXPECT_LE(peak, all + kScratchBytes);
  EXPECT_GE(peak, all * 0.97);
}

TEST(ActivationsOfDropout, AreCounted) {
  constexpr double kDropout = 0.1;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const int64_t kept =
        measure(gpt2_of(5, kDropout), dtype).kept - measure(gpt2_of(2, kDropout), dtype).kept;
    const int64_t planned = activation_bytes(gpt2_of(5, kDropout), kBatch, kSequence, dtype).kept -
                            activation_bytes(gpt2_of(2, kDropout), kBatch, kSequence, dtype).kept;
    EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(planned), 1, 0.05) << to_string(dtype);
  }
}

TEST(ActivationBytes, GrowWithTheMicroBatchOnly) {
  const auto of = [](int64_t batch, int64_t sequence) {
    return activation_bytes(gpt2_of(3), batch, sequence, Dtype::bf16);
  };
  // 16 widths a layer and token, and what the last norm reads.
  EXPECT_EQ(of(1, 100).kept, 100 * (3 * 16 + 1) * kWidth * 2);
  EXPECT_EQ(of(3, 100).kept, 3 * of(1, 100).kept);
  EXPECT_EQ(of(3, 100).kept, of(1, 300).kept);
  // Hidden states and their gradient, logits, and the weight's gradient or what is widened before it.
  const int64_t gradient = kVocabulary * kWidth * 2, widened = 300 * kVocabulary * 8;
  ASSERT_GT(widened, gradient);
  EXPECT_EQ(of(1, 100).loss, 100 * (2 * kWidth + kVocabulary) * 2 + gradient);
  EXPECT_EQ(of(3, 100).loss, 300 * (2 * kWidth + kVocabulary) * 2 + widened);
}

TEST(ActivationBytes, RefuseWhatCannotBe) {
  EXPECT_ERROR(activation_bytes(gpt2_of(3), 0, 256, Dtype::f32), Config,
               "micro-batch: expected at least one");
  EXPECT_ERROR(activation_bytes(gpt2_of(3), 1 << 30, 1 << 30, Dtype::f32), Config, "too large to count");
  EXPECT_ERROR(activation_bytes(gpt2_of(-1), 1, 256, Dtype::f32), Config, "layers");
}

// Worked by hand: 100 of everything but the gradients.
TEST(PeakBytes, AreThoseOfTheFullerMoment) {
  Plan plan;
  plan.rank = {.parameter_bytes = 60,
               .gradient_bytes = 30,
               .optimizer_bytes = 40,
               .largest_gradient_bytes = 8,
               .gradient_memory_bytes = 30};
  EXPECT_EQ(peak_bytes(plan, {}), 138);
  EXPECT_EQ(peak_bytes(plan, {.kept = 30, .loss = 8}), 138);
  EXPECT_EQ(peak_bytes(plan, {.kept = 50, .loss = 9}), 159);
  plan.accumulation_steps = 2;  // sums of earlier micro-batches stay
  EXPECT_EQ(peak_bytes(plan, {.kept = 50, .loss = 9}), 189);
}

}  // namespace
}  // namespace zero

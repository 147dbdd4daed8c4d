// Hugging Face's tensor-parallel plans cut what transformers would cut.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "zero/hf_tensor_parallel_plan.h"
#include "zero/language_model_plan.h"
#include "zero/llama.h"

namespace {

using namespace zero::testing;
using zero::hf_tensor_parallel_plan;
using zero::Mesh;

constexpr const char* kLlamaPlan = R"({"layers.*.self_attn.q_proj": "colwise",
  "layers.*.self_attn.k_proj": "colwise", "layers.*.self_attn.v_proj": "colwise",
  "layers.*.self_attn.o_proj": "rowwise", "layers.*.mlp.gate_proj": "colwise",
  "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise",
  "layers.*.input_layernorm.weight": "sequence_parallel", "embed_tokens": "embedding_rowwise",
  "norm": "replicate", "lm_head": "colwise_gather_output"})";

const zero::LlamaShape kShape{.vocab_size = 33,
                              .context_length = 8,
                              .layers = 2,
                              .width = 16,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_width = 4,
                              .mlp_width = 21};

// Of a base model "model." and a head beside it, as transformers puts the two plans together.
TEST(HfPlan, CutsLlamaAsItsOwnPlanDoes) {
  run_ranks(
      2,
      [](const Mesh& mesh) {
        torch::manual_seed(1);
        const auto one = zero::make_language_model(kShape);
        torch::manual_seed(1);
        const auto model = zero::make_language_model(kShape);
        torch::manual_seed(1);
        const auto other = zero::make_language_model(kShape);
        const auto plan = hf_tensor_parallel_plan(kLlamaPlan, *model, {.prefix = "model."});
        const auto parallel = zero::parallelize(*model, plan, mesh);
        const auto own = zero::parallelize(*other, zero::tensor_parallel_plan(*other, kShape, 2), mesh);
        EXPECT_EQ(parallel.parts(), own.parts());
        const auto tokens = torch::arange(16).view({2, 8});
        const auto expected = one->loss(tokens, tokens);
        const auto loss = parallel.forward([&] { return model->loss(tokens, tokens); });
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
        EXPECT_TRUE(parallel.report().gathered.empty());
      },
      [] {
        RankOptions options;
        options.mesh.axes = {{"dp", 1}, {"tp", -1}};
        return options;
      }());
}

/// A gate and a value of one product, and embeddings.
struct PackedImpl : torch::nn::Module {
  PackedImpl() {
    words = register_module("words", torch::nn::Embedding(9, 8));
    gate_up = register_module("gate_up", torch::nn::Linear(8, 14));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})));
    down = register_module("down", torch::nn::Linear(7, 8));
    pair = register_module("pair", torch::nn::Linear(14, 8));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const auto x = words(ids);
    const auto y = gate_up(x);
    const auto halves = y.chunk(2, -1);
    return down(torch::silu(halves[0]) * halves[1]) + pair(y);
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear gate_up{nullptr}, down{nullptr}, pair{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Packed);

TEST(HfPlan, PackedWordsCutEachHalf) {
  RankOptions options;
  options.mesh.axes = {{"dp", 1}, {"tp", -1}};
  for (const int ranks : {2, 3})
    run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          torch::manual_seed(1);
          Packed one;
          torch::manual_seed(1);
          Packed model;
          const auto plan = hf_tensor_parallel_plan(
              R"({"base_model_tp_plan": {"words": "rowwise", "gate_up": "packed_colwise", "down": "rowwise_rep",
                  "pair": "packed_rowwise", "norm": "replicated_with_grad_allreduce"}})",
              *model);
          const auto parallel = zero::parallelize(*model, plan, mesh);
          EXPECT_EQ(parallel.report().cut,
                    (std::vector<std::string>{"words.weight", "gate_up.weight", "gate_up.bias", "down.weight",
                                              "pair.weight"}));
          const auto ids = torch::arange(9);
          const auto expected = one(ids);
          const auto y = parallel.forward([&] { return model(ids); });
          EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-6));
          expected.square().sum().backward();
          y.square().sum().backward();
          for (const auto& item : one->named_parameters()) {
            if (!item.value().grad().defined()) continue;
            EXPECT_TRUE(at::allclose(model->named_parameters()[item.key()].grad(),
                                     parallel.part_of(item.key(), item.value().grad()), 1e-4, 1e-5))
                << item.key();
          }
          EXPECT_TRUE(parallel.report().gathered.empty()) << parallel.report().gathered.begin()->first;
        },
        options);
}

TEST(HfPlan, WhatItDoesNotKnowIsRefusedByName) {
  Packed model;
  EXPECT_ERROR(hf_tensor_parallel_plan(R"({"gate_up": "moe_tp_experts", "down": "ep_router"})", *model),
               Config,
               "there is no word \"ep_router\" of down, \"moe_tp_experts\" of gate_up; words are colwise");
  EXPECT_ERROR(hf_tensor_parallel_plan(R"({"gate_upp": "colwise"})", *model), Config,
               "the module has no gate_upp");
  EXPECT_ERROR(hf_tensor_parallel_plan(R"({"gate_up": 3})", *model), Corrupt, "gate_up");
  EXPECT_ERROR(hf_tensor_parallel_plan("[1]", *model), Corrupt, "base_model_tp_plan: expected an object");
  EXPECT_ERROR(hf_tensor_parallel_plan("{", *model, {.place = "config.json"}), Corrupt, "config.json");
}

}  // namespace

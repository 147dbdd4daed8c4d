#pragma once
// Layers that say themselves how they are cut over tensor-parallel ranks, for modules that are written for
// them (Shoeybi et al. 2019, arXiv 1909.08053; Megatron-LM's tensor_parallel/layers.py). What they do is what
// a plan does for any module (tensor_parallel.h), by the same means:
//
//   auto parallel = zero::parallelize(*model, {}, mesh);   // parallel layers need no rules of a plan
//   zero::EngineOptions options{.stage = 3};
//   parallel.add_to(options);
//
// Until then, and on a mesh of one rank along "tp", each is the ordinary layer, whole, and draws what
// torch::nn's draws. They may be built lazily; sizes and checkpoints are those of the whole. Sequence
// parallelism is TensorParallelOptions', for all of a module. Under each forward's TensorParallel scope (an
// engine's forward is one) activations report the sizes of the whole. All ranks of the axis call forward.

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "zero/tensor_parallel.h"

namespace zero {

/// A module with rules of its own for its parameters.
class ParallelLayer {
 public:
  virtual ~ParallelLayer() = default;
  /// For so many ranks; patterns are names inside the module.
  virtual TensorParallelPlan tensor_parallel_rules(int ranks) const = 0;
};

/// Outputs that lie side by side in one product (queries, keys, values), each of which is cut by itself, and
/// between heads where there are any.
struct OutputBlock {
  int64_t size = 0;
  int64_t heads = 0;  // 0: between any two elements
};

struct ColumnParallelLinearOptions {
  int64_t in = 0, out = 0;
  bool bias = true;
  bool gather_output = false;            // on all ranks, whole; otherwise each has its part of the outputs
  std::vector<OutputBlock> blocks = {};  // of which `out` is the sum; {}: one
};

/// x [.., in] -> [.., out], of which each rank makes its part: weight [out, in] and bias [out] are cut in dim
/// 0, as evenly as they can be. x is whole, or a part of the sequence, which is gathered. Throws Config for
/// sizes that are none, and parallelize() for fewer outputs or heads than ranks.
class ColumnParallelLinearImpl : public torch::nn::Cloneable<ColumnParallelLinearImpl>, public ParallelLayer {
 public:
  explicit ColumnParallelLinearImpl(ColumnParallelLinearOptions options);
  ColumnParallelLinearImpl(int64_t in, int64_t out)
      : ColumnParallelLinearImpl(ColumnParallelLinearOptions{.in = in, .out = out}) {}

  torch::Tensor forward(const torch::Tensor& x);
  void reset() override;
  TensorParallelPlan tensor_parallel_rules(int ranks) const override;

  ColumnParallelLinearOptions options;
  torch::Tensor weight, bias;  // bias: undefined where there is none
};
TORCH_MODULE(ColumnParallelLinear);

struct RowParallelLinearOptions {
  int64_t in = 0, out = 0;
  bool bias = true;
  // x must come in parts, as a ColumnParallelLinear leaves it: Usage for a whole one. Otherwise of a whole
  // one each rank reads its part.
  bool input_is_parallel = false;
  int64_t heads = 0;  // `in` is cut between them, as the layer before is; 0: between any two elements
};

/// x [.., in] -> [.., out], the sum of what the ranks make of their parts of x: weight [out, in] is cut in
/// dim
/// 1. The bias [out] is whole on all ranks and added once, to the sum. Under sequence parallelism each rank
/// keeps a part of the sequence. Throws as ColumnParallelLinear.
class RowParallelLinearImpl : public torch::nn::Cloneable<RowParallelLinearImpl>, public ParallelLayer {
 public:
  explicit RowParallelLinearImpl(RowParallelLinearOptions options);
  RowParallelLinearImpl(int64_t in, int64_t out)
      : RowParallelLinearImpl(RowParallelLinearOptions{.in = in, .out = out}) {}

  torch::Tensor forward(const torch::Tensor& x);
  void reset() override;
  TensorParallelPlan tensor_parallel_rules(int ranks) const override;

  RowParallelLinearOptions options;
  torch::Tensor weight, bias;
};
TORCH_MODULE(RowParallelLinear);

struct VocabParallelEmbeddingOptions {
  int64_t words = 0, width = 0;
  std::optional<int64_t> padding = {};  // this row begins as zeros and gets no gradient
};

/// ids [..] int64 -> [.., width]: rows of the weight [words, width] are cut as evenly as they can be, foreign
/// ids count as zeros, and the ranks' rows are added up. The weight may be a head's too, which then makes
/// logits in parts: torch::linear(x, embedding->weight). Throws Config for sizes that are none.
class VocabParallelEmbeddingImpl : public torch::nn::Cloneable<VocabParallelEmbeddingImpl>,
                                   public ParallelLayer {
 public:
  explicit VocabParallelEmbeddingImpl(VocabParallelEmbeddingOptions options);
  VocabParallelEmbeddingImpl(int64_t words, int64_t width)
      : VocabParallelEmbeddingImpl(VocabParallelEmbeddingOptions{.words = words, .width = width}) {}

  torch::Tensor forward(const torch::Tensor& ids);
  void reset() override;
  TensorParallelPlan tensor_parallel_rules(int ranks) const override;

  VocabParallelEmbeddingOptions options;
  torch::Tensor weight;
};
TORCH_MODULE(VocabParallelEmbedding);

struct VocabParallelCrossEntropyOptions {
  enum class Reduction { Mean, Sum, None };
  int64_t ignore_index = -100;  // rows with this target count nothing
  Reduction reduction = Reduction::Mean;
  double label_smoothing = 0;  // 0..1: this share of the target is spread evenly over the whole vocabulary
};

/// Cross-entropy in nats as torch.nn.functional has it, of logits [.., vocabulary], of which ranks hold parts
/// (or all, without "tp" or behind gather_output), and targets [..], class indices, int64. No logits are
/// gathered: a row sends its maximum, its sum of exponentials, its target's logit, and with smoothing the sum
/// of its logits. Computed in fp32 (fp64 of fp64), given in the logits' dtype: a scalar, NaN for the mean of
/// no rows, or with Reduction::None targets' shape. The same on all ranks. Throws Usage for other shapes and
/// dtypes and, on CPU, for targets outside the vocabulary; Config for smoothing outside 0..1.
torch::Tensor vocab_parallel_cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets,
                                           const VocabParallelCrossEntropyOptions& options = {});

struct ParallelAttentionOptions {
  int64_t width = 0, heads = 0;
  int64_t kv_heads = 0;    // grouped queries: a divisor of heads; 0: as many as heads
  int64_t head_width = 0;  // 0: width / heads
  bool bias = true;
  bool fused = true;  // one product makes queries, keys and values; otherwise three do
  bool is_causal = true;
  double dropout = 0;  // of probabilities, while training; draws what one process draws
};

/// Self-attention by heads, x [batch, length, width] -> the same. Each rank has heads / t of them, unevenly
/// where t does not divide them. Keys and values: with as many heads as ranks or more, queries stay with the
/// heads of keys that they read. With fewer, "key" and "value" are whole on all ranks, each reads those of
/// its queries, gradients are added up, and they count once in norms; a fused product is cut evenly and its
/// output gathered. Parameters: qkv (or query, key, value) and out, as Linear's. Throws Config for sizes that
/// do not fit, and parallelize() for fewer heads than ranks.
class ParallelAttentionImpl : public torch::nn::Cloneable<ParallelAttentionImpl>, public ParallelLayer {
 public:
  explicit ParallelAttentionImpl(ParallelAttentionOptions options);

  /// `mask` as scaled_dot_product_attention takes it, of sizes that broadcast to [batch, heads, length,
  /// length]; Usage with is_causal.
  torch::Tensor forward(const torch::Tensor& x, const std::optional<torch::Tensor>& mask = {});
  void reset() override;
  TensorParallelPlan tensor_parallel_rules(int ranks) const override;

  ParallelAttentionOptions options;
  ColumnParallelLinear qkv{nullptr}, query{nullptr}, key{nullptr}, value{nullptr};
  RowParallelLinear out{nullptr};

 private:
  torch::Tensor by_heads(const torch::Tensor& x, int64_t heads) const;
  std::vector<torch::Tensor> parts_of(const torch::Tensor& x);
};
TORCH_MODULE(ParallelAttention);

}  // namespace zero

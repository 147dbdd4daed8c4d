#pragma once
// What all language models here have in common: tokens in, logits or a loss out. Training, evaluation and
// generation know no more than this of a model. Plain torch::nn::Modules: they know nothing of ranks, shards
// or devices.

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zero/block_chain.h"
#include "zero/model_shape.h"

namespace torch::nn {
class ModuleListImpl;
}

namespace zero {

/// Keys and values of the positions that a model has seen, so that the next ones need not look at them again.
/// For one model and one batch of texts at a time; without gradients.
class KeyValueCache {
 public:
  /// Room for `capacity` positions, taken when the first come.
  explicit KeyValueCache(int64_t capacity) : capacity_(capacity) {}

  /// Positions that all layers hold.
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }

  /// Puts keys and values [batch, heads, positions, width] of the next positions behind those of a layer, and
  /// returns all there are. Throws Usage where they do not fit.
  std::pair<torch::Tensor, torch::Tensor> append(int64_t layer, const torch::Tensor& keys,
                                                 const torch::Tensor& values);
  /// All layers have appended so many positions.
  void advance(int64_t positions) { length_ += positions; }

 private:
  struct Layer {
    torch::Tensor keys, values;  // [batch, heads, capacity, width]
  };
  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<Layer> layers_;
};

class Rotation;

/// What the blocks of one forward share beside the tensor that flows through them.
struct BlockContext {
  KeyValueCache* cache = nullptr;                 // of the positions before; null: there are none
  std::shared_ptr<const Rotation> rotation = {};  // of these positions, in models that rotate
  std::optional<uint64_t> dropout_seed = {};      // LanguageModel::set_dropout_seed()
};

/// One of a model's equal layers.
class TransformerBlock : public torch::nn::Module {
 public:
  /// x [batch, sequence, width] -> the same. `layer`: which of the model's blocks it is.
  virtual torch::Tensor forward(const torch::Tensor& x, const BlockContext& context, int64_t layer) = 0;
};

/// A first part (embedding), blocks, and a last part (norm, head, loss).
class LanguageModel : public torch::nn::Module {
 public:
  /// tokens [batch, sequence] int64 -> logits [batch, sequence, vocab_size] in the parameters' dtype.
  /// Position i sees tokens 0..i only. Throws Config where the sequence is longer than the context, Usage for
  /// another rank or dtype, an empty sequence, or (on a CPU) a token outside the vocabulary.
  torch::Tensor forward(const torch::Tensor& tokens);

  /// The same for tokens that follow those in the cache, which then holds them too. Throws Usage with
  /// gradients on.
  torch::Tensor forward(const torch::Tensor& tokens, KeyValueCache& cache);

  /// Mean cross-entropy in nats over all positions, a scalar; targets [batch, sequence] int64, -100 is left
  /// out. The log-softmax is taken in fp32 (fp64 for fp64 parameters). Throws as forward, and for targets of
  /// another shape.
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets);

  /// The parts that forward() and loss() run one after the other, for a caller that runs them apart. Tensors
  /// between them are [batch, sequence, width]. Each throws as forward().
  /// tokens [batch, sequence] int64, of which the first stands at position `begin`.
  torch::Tensor first_part(const torch::Tensor& tokens, int64_t begin = 0);
  /// Blocks [first, last) of block_count(). With a cache x stands behind the positions it holds; whoever has
  /// run all blocks calls cache->advance().
  torch::Tensor run_blocks(torch::Tensor x, int64_t first, int64_t last, KeyValueCache* cache = nullptr);
  /// -> logits, as forward().
  torch::Tensor last_part(const torch::Tensor& x);
  /// -> the loss of loss(), to rounding: that one knows the head and the embedding beside each other.
  torch::Tensor last_part_loss(const torch::Tensor& x, const torch::Tensor& targets);
  int64_t block_count();

  /// Before the embedding's dropout, and before each block's, the default generator begins at a number that
  /// follows from this seed and from which of them it is: what is dropped does not depend on who runs the
  /// blocks before. Counts for the forwards that follow. Unset: the generator is left alone.
  void set_dropout_seed(std::optional<uint64_t> seed) { dropout_seed_ = seed; }

  /// Which blocks are recomputed in backward: the same bits with less memory and more time. Before the first
  /// forward.
  void set_recompute(const RecomputePolicy& policy) { chain_ = BlockChain(policy); }
  BlockChain& block_chain() { return chain_; }

  int64_t vocab_size() const { return vocab_size_; }
  int64_t context_length() const { return context_length_; }

 protected:
  /// `name` stands in errors.
  LanguageModel(std::string name, int64_t vocab_size, int64_t context_length);

 private:
  /// [vocab_size, width]; the same tensor where the head is tied.
  virtual const torch::Tensor& embedding_weight() const = 0;
  virtual const torch::Tensor& head_weight() const = 0;
  /// What the first block reads, from embedded tokens that begin at that position.
  virtual torch::Tensor enter(const torch::Tensor& embedded, int64_t /*begin*/) { return embedded; }
  /// Of x's positions, in models that rotate.
  virtual std::shared_ptr<const Rotation> rotation(const torch::Tensor& /*x*/, int64_t /*begin*/) {
    return nullptr;
  }
  /// Of TransformerBlocks.
  virtual torch::nn::ModuleListImpl& blocks() = 0;
  /// The last norm: what the head reads.
  virtual torch::Tensor leave(const torch::Tensor& x) = 0;

  torch::Tensor apply_block(const torch::Tensor& x, const BlockContext& context, int64_t layer);
  void check_tokens(const torch::Tensor& tokens, int64_t seen) const;
  void require_ids(const torch::Tensor& t, const char* what) const;
  void require_targets(const torch::Tensor& targets) const;

  std::string name_;
  int64_t vocab_size_, context_length_;
  std::optional<uint64_t> dropout_seed_;
  BlockChain chain_;
};

/// A model of that shape, initialised from the default generator; may be called inside lazily().
std::shared_ptr<LanguageModel> make_language_model(const ModelShape& shape);

/// Names of the linear layers, which may get an adapter.
std::vector<std::string> linear_layer_names(const torch::nn::Module& model);

/// Gives the linear layers that lora.targets name an adapter each, drawn from the default generator; nothing
/// where lora.rank is 0. May be called inside lazily(). Returns how many.
int add_adapters(torch::nn::Module& model, const LoraConfig& lora);

}  // namespace zero

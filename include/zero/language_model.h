#pragma once
// What all language models here have in common: tokens in, logits or a loss out. Training, evaluation and
// generation know no more than this of a model. Plain torch::nn::Modules: they know nothing of ranks, shards
// or devices.

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zero/model_shape.h"

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

  int64_t vocab_size() const { return vocab_size_; }
  int64_t context_length() const { return context_length_; }

 protected:
  /// `name` stands in errors.
  LanguageModel(std::string name, int64_t vocab_size, int64_t context_length);

 private:
  /// What the head reads, [batch, sequence, width], from the embedded tokens of that shape. The first of them
  /// stands behind what the cache holds, if there is one.
  virtual torch::Tensor hidden(const torch::Tensor& embedded, KeyValueCache* cache) = 0;
  /// [vocab_size, width]; the same tensor where the head is tied.
  virtual const torch::Tensor& embedding_weight() const = 0;
  virtual const torch::Tensor& head_weight() const = 0;

  void check_tokens(const torch::Tensor& tokens, int64_t seen) const;
  void require_ids(const torch::Tensor& t, const char* what) const;
  void require_targets(const torch::Tensor& targets) const;

  std::string name_;
  int64_t vocab_size_, context_length_;
};

/// A model of that shape, initialised from the default generator; may be called inside lazily().
std::shared_ptr<LanguageModel> make_language_model(const ModelShape& shape);

/// Gives the linear layers that lora.targets name an adapter each, drawn from the default generator; nothing
/// where lora.rank is 0. May be called inside lazily(). Returns how many.
int add_adapters(torch::nn::Module& model, const LoraConfig& lora);

}  // namespace zero

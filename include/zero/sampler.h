#pragma once
// Which tokens a rank trains on at a step. Pure arithmetic: no state, no file, the same on every rank.
//
// A text of T tokens holds n = (T - 1) / S samples of S + 1 tokens, at stride S: sample i is tokens [i*S, i*S
// + S], inputs the first S and targets the last S. Training runs through an endless order of samples:
// positions [e*n, (e+1)*n) are epoch e, a pseudo-random permutation of all samples that depends on seed and e
// alone. A step takes the next `global batch` positions; a batch that reaches the end of an epoch goes on
// with the start of the next. The only thing to store for an exact resume is the position: the number of
// samples taken so far.

#include <cstdint>
#include <vector>

namespace zero {

/// A permutation of [0, size) that is computed, not stored: a Feistel network on the next power of four,
/// repeated until the value is in range ("cycle walking"; Black and Rogaway 2002). About two to four rounds
/// through the network a call.
class Permutation {
 public:
  /// Throws Usage unless 1 <= size <= 2^62.
  Permutation(int64_t size, uint64_t key);

  /// Where `index` goes. Throws Usage unless it is in [0, size).
  int64_t operator()(int64_t index) const;

  int64_t size() const { return size_; }

 private:
  static constexpr int kRounds = 8;
  int64_t size_;
  int half_bits_;
  uint64_t keys_[kRounds];
};

/// What one rank takes of a step in one micro-batch. The global batch is world * micro_batch_size *
/// micro_batches.
struct BatchSlot {
  int64_t rank = 0, world = 1;           // of the data-parallel axis
  int64_t micro = 0, micro_batches = 1;  // which micro-batch of the step, of how many
  int64_t micro_batch_size = 1;          // samples
};

struct SamplerOptions {
  int64_t sequence_length = 0;  // S
  bool shuffle = true;          // false: samples in their order, every epoch
  uint64_t seed = 0;
};

class Sampler {
 public:
  /// Throws Config when `tokens` are not enough for one sample (S + 1) or S < 1.
  Sampler(int64_t tokens, const SamplerOptions& options);

  int64_t samples() const { return samples_; }  // in an epoch
  int64_t sequence_length() const { return options_.sequence_length; }

  /// The first token of a sample, which has sequence_length() + 1.
  int64_t first_token(int64_t sample) const { return sample * options_.sequence_length; }

  /// The sample at a position of the endless order.
  int64_t sample_at(int64_t position) const;

  int64_t epoch_of(int64_t position) const { return position / samples_; }

  /// The samples of one slot of the step that begins at `position` (samples taken before it). Micro-batch m
  /// of all ranks together is positions [m*B, (m+1)*B) of the step, B = world * micro_batch_size, rank r's
  /// the r-th part. So the step's samples depend on the global batch alone, and a world of one with world *
  /// micro_batches micro-batches sees the same micro-batches in the same order. Throws Usage for a slot that
  /// makes no sense.
  std::vector<int64_t> batch(int64_t position, const BatchSlot& slot) const;

  /// For evaluation: batch `index` of a rank in a pass over every sample once, in order. At the ragged end
  /// some ranks have a short or an empty batch; every rank has evaluation_batches() of them, so that
  /// collectives match.
  std::vector<int64_t> evaluation_batch(int64_t index, int64_t rank, int64_t world, int64_t batch_size) const;
  int64_t evaluation_batches(int64_t world, int64_t batch_size) const;

 private:
  SamplerOptions options_;
  int64_t samples_;
};

/// Samples of a step: world * micro_batch_size * micro_batches. Throws Usage when one is below 1 or they
/// overflow.
int64_t global_batch(const BatchSlot& slot);

}  // namespace zero

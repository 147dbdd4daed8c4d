#include "zero/sampler.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/checked.h"
#include "base/mix_bits.h"
#include "zero/error.h"

namespace zero {
namespace {

int64_t checked_end(int64_t position, int64_t batch) {
  const auto end = checked_add(position, batch);
  require(position >= 0 && end.has_value(), ErrorKind::Usage, "Sampler",
          "position " + std::to_string(position) + " is out of range");
  return *end;
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t key) : size_(size) {
  require(size >= 1 && size <= int64_t{1} << 62, ErrorKind::Usage, "Permutation",
          "a size of " + std::to_string(size) + ", expected 1 to 2^62");
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  half_bits_ = std::max(1, (bits + 1) / 2);
  for (uint64_t& round_key : keys_) round_key = mix_bits(key += kGoldenGamma);
}

int64_t Permutation::operator()(int64_t index) const {
  if (index < 0 || index >= size_) {
    fail(ErrorKind::Usage, "Permutation",
         "index " + std::to_string(index) + " is not in [0, " + std::to_string(size_) + ")");
  }
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (const uint64_t round_key : keys_) {
      const uint64_t next = left ^ (mix_bits(right + round_key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

int64_t global_batch(const BatchSlot& slot) {
  const bool positive = slot.world >= 1 && slot.micro_batch_size >= 1 && slot.micro_batches >= 1;
  const auto across = checked_multiply(slot.world, slot.micro_batch_size);
  const auto all = across ? checked_multiply(*across, slot.micro_batches) : across;
  require(positive && all, ErrorKind::Usage, "Sampler",
          "a global batch of " + std::to_string(slot.world) + " ranks * " +
              std::to_string(slot.micro_batch_size) + " samples * " + std::to_string(slot.micro_batches) +
              " micro-batches");
  return *all;
}

Sampler::Sampler(int64_t tokens, const SamplerOptions& options) : options_(options) {
  require(options.sequence_length >= 1, ErrorKind::Config, "sequence length",
          "expected at least 1, got " + std::to_string(options.sequence_length));
  samples_ = tokens < 1 ? 0 : (tokens - 1) / options.sequence_length;
  require(samples_ >= 1, ErrorKind::Config, "data",
          "a sample of sequence length " + std::to_string(options.sequence_length) +
              " needs one token more than that, "
              "and there are only " +
              std::to_string(tokens),
          "give more text or a shorter sequence length");
}

int64_t Sampler::sample_at(int64_t position) const {
  checked_end(position, 0);
  const int64_t epoch = position / samples_, index = position % samples_;
  if (!options_.shuffle) return index;
  return Permutation(samples_,
                     mix_bits(options_.seed + kGoldenGamma) ^ mix_bits(static_cast<uint64_t>(epoch)))(index);
}

std::vector<int64_t> Sampler::batch(int64_t position, const BatchSlot& slot) const {
  checked_end(position, global_batch(slot));
  require(slot.rank >= 0 && slot.rank < slot.world, ErrorKind::Usage, "Sampler",
          "rank " + std::to_string(slot.rank) + " of " + std::to_string(slot.world));
  require(slot.micro >= 0 && slot.micro < slot.micro_batches, ErrorKind::Usage, "Sampler",
          "micro-batch " + std::to_string(slot.micro) + " of " + std::to_string(slot.micro_batches));
  const int64_t first = position + (slot.micro * slot.world + slot.rank) * slot.micro_batch_size;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < slot.micro_batch_size; ++i) ids.push_back(sample_at(first + i));
  return ids;
}

int64_t Sampler::evaluation_batches(int64_t world, int64_t batch_size) const {
  const int64_t across = global_batch({.world = world, .micro_batch_size = batch_size});
  return samples_ / across + (samples_ % across != 0 ? 1 : 0);
}

std::vector<int64_t> Sampler::evaluation_batch(int64_t index, int64_t rank, int64_t world,
                                               int64_t batch_size) const {
  const int64_t batches = evaluation_batches(world, batch_size);
  require(index >= 0 && index < batches && rank >= 0 && rank < world, ErrorKind::Usage, "Sampler",
          "evaluation batch " + std::to_string(index) + " of " + std::to_string(batches) + ", rank " +
              std::to_string(rank) + " of " + std::to_string(world));
  // index * across is below samples_, but one rank's part of it may end past the largest number.
  const int64_t step = index * world * batch_size, offset = rank * batch_size;
  if (offset >= samples_ - step) return {};
  const int64_t first = step + offset, count = std::min(batch_size, samples_ - first);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

}  // namespace zero

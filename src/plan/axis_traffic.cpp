#include "zero/axis_traffic.h"

#include <string>

#include "zero/error.h"

namespace zero {
namespace {

constexpr int64_t kTwice = 2;  // of an all-reduce
constexpr int64_t kSumBytes = 4;

/// One micro-batch over ranks that share layers.
struct Sums {
  int64_t tokens, rows, sequence, item_bytes;
  LayerShare share;
  TensorTraffic traffic = {};

  // The same number of positions from every rank.
  int64_t padded_tokens() const { return rows * ((sequence + share.ranks - 1) / share.ranks * share.ranks); }
  void sum(int64_t calls, int64_t numel) { traffic.all_reduce.add(calls, kTwice * numel, item_bytes); }
  // An activation that parts make, or whose gradient parts make: summed, or gathered and scattered.
  void activations(int64_t calls, int64_t width) {
    if (!share.sequence) return sum(calls, tokens * width);
    traffic.all_gather.add(calls, padded_tokens() * width, item_bytes);
    traffic.reduce_scatter.add(calls, padded_tokens() * width, item_bytes);
  }
};

// Parameters outside the parts, read by parts of a sequence: gradients of norms and of biases behind sums.
int64_t summed_of_block(const Gpt2Shape&) { return 6; }
int64_t summed_of_block(const GptNeoxShape&) { return 6; }
int64_t summed_of_block(const LlamaShape&) { return 2; }
int64_t summed_of_norm(const Gpt2Shape&) { return 2; }
int64_t summed_of_norm(const GptNeoxShape&) { return 2; }
int64_t summed_of_norm(const LlamaShape&) { return 1; }

template <class Shape>
void add_heads_of_keys(const Shape&, Sums&) {}
// Heads that the ranks outnumber are whole on all of them, and repeated for those of queries: gradients of
// keys and values are summed.
void add_heads_of_keys(const LlamaShape& s, Sums& sums) {
  if (s.kv_heads >= sums.share.ranks) return;
  const int64_t width = s.heads * s.head_width;
  if (!sums.share.sequence) return sums.sum(2, sums.tokens * width);
  sums.sum(2, s.width * s.kv_heads * s.head_width);  // of their weights
  sums.traffic.all_gather.add(2, sums.padded_tokens() * width, sums.item_bytes);
  sums.traffic.reduce_scatter.add(2, sums.padded_tokens() * width, sums.item_bytes);
}

template <class Shape>
void add_positions(const Shape&, Sums&) {}
void add_positions(const Gpt2Shape& s, Sums& sums) {
  if (sums.share.sequence) sums.sum(1, sums.sequence * s.width);
}

template <class Shape>
void add_block(const Shape& s, Sums& sums) {
  sums.activations(4, s.width);
  if (sums.share.sequence) sums.sum(summed_of_block(s), s.width);
  add_heads_of_keys(s, sums);
}

template <class Shape>
void add_first(const Shape& s, Sums& sums) {
  if (sums.share.vocabulary) {
    if (sums.share.sequence)
      sums.activations(1, s.width);
    else
      sums.sum(1, sums.tokens * s.width);
  }
  add_positions(s, sums);
}

template <class Shape>
void add_last(const Shape& s, Sums& sums) {
  if (sums.share.sequence) sums.sum(summed_of_norm(s), s.width);
  if (!sums.share.vocabulary) return;
  sums.activations(1, s.width);
  // A row's maximum; the sum of its exponentials and its target's logit.
  sums.traffic.all_reduce.add(1, kTwice * sums.tokens, kSumBytes);
  sums.traffic.all_reduce.add(1, kTwice * 2 * sums.tokens, kSumBytes);
}

void check_sizes(int64_t batch, int64_t sequence) {
  require(batch >= 1 && sequence >= 1, ErrorKind::Config, "micro-batch",
          "expected at least one sequence of one token, got " + std::to_string(batch) + " of " +
              std::to_string(sequence));
}

}  // namespace

TensorTraffic times(TensorTraffic traffic, int64_t count) {
  for (Moved* moved : {&traffic.all_reduce, &traffic.all_gather, &traffic.reduce_scatter})
    *moved = {moved->calls * count, moved->elements * count, moved->bytes * count};
  return traffic;
}

TensorTraffic tensor_traffic(const ModelShape& shape, int64_t batch, int64_t sequence, Dtype dtype,
                             const LayerShare& share, const HeldParts& held) {
  check_sizes(batch, sequence);
  if (share.ranks == 1) return {};
  Sums sums{.tokens = batch * sequence,
            .rows = batch,
            .sequence = sequence,
            .item_bytes = itemsize(dtype),
            .share = share};
  std::visit(
      [&](const auto& s) {
        for (int64_t block = 0; block < held.blocks; ++block) add_block(s, sums);
        if (held.has_first) add_first(s, sums);
        if (held.has_last) add_last(s, sums);
      },
      shape);
  return sums.traffic;
}

Moved pipeline_messages(const ModelShape& shape, int64_t batch, int64_t sequence, Dtype dtype,
                        const LayerShare& share, int64_t neighbours, int64_t micro_batches) {
  check_sizes(batch, sequence);
  const int64_t width = std::visit([](const auto& s) { return s.width; }, shape);
  const int64_t of_rank = share.sequence ? (sequence + share.ranks - 1) / share.ranks : sequence;
  Moved moved;
  moved.add(neighbours * micro_batches, batch * of_rank * width, itemsize(dtype));
  return moved;
}

}  // namespace zero

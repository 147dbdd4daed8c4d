#pragma once
// What a head needs beside its tensors. All of it becomes part of its callers, which are compiled for
// different processors.

#include <cstdint>

#include "base/vector_versions.h"
#include "operators/attention/kernels.h"

namespace zero::attention {

inline constexpr int64_t kBlock = 32;  // queries, and keys, at a time; a multiple of every tile

ZERO_INLINE int64_t padded(int64_t count) { return (count + kBlock - 1) / kBlock * kBlock; }

/// Sizes with their padding.
struct Sizes {
  ZERO_INLINE explicit Sizes(const Shape& shape) : keys(padded(shape.keys)), row(padded(shape.width)) {}
  /// Panels of keys that queries before `end` see any of.
  ZERO_INLINE int64_t panels_for(const Shape& shape, int64_t end) const {
    return padded(shape.causal && end < shape.keys ? end : shape.keys) / kBlock;
  }
  int64_t keys, row;
};

/// An fp32 matrix as the sum of two of bf16, which keep 16 of its 24 bits.
struct Split {
  char *high, *low;
};

/// Hands out parts of the scratch, each at a multiple of 64 bytes; without memory it only counts.
class Scratch {
 public:
  ZERO_INLINE explicit Scratch(float* memory) : memory_(memory) {}
  ZERO_INLINE float* floats(int64_t numel) {
    const int64_t begin = numel_;
    numel_ += (numel + 15) / 16 * 16;
    return memory_ == nullptr ? nullptr : memory_ + begin;
  }
  ZERO_INLINE char* halves(int64_t numel) { return reinterpret_cast<char*>(floats((numel + 1) / 2)); }
  ZERO_INLINE Split split(int64_t numel) { return {halves(numel), halves(numel)}; }
  ZERO_INLINE int64_t numel() const { return numel_; }

 private:
  float* memory_;
  int64_t numel_ = 0;
};

/// The parts of body.h's forward, all fp32.
struct ForwardParts {
  ZERO_INLINE ForwardParts(Scratch& take, const Sizes& sizes)
      : values(take.floats(sizes.keys * sizes.row)),
        transposed_keys(take.floats(sizes.keys * sizes.row)),
        query(take.floats(kBlock * sizes.row)),
        scores(take.floats(kBlock * sizes.keys)),
        result(take.floats(kBlock * sizes.row)) {}
  float *values, *transposed_keys, *query, *scores, *result;
};

struct BackwardParts {
  ZERO_INLINE BackwardParts(Scratch& take, const Sizes& sizes)
      : keys(take.floats(sizes.keys * sizes.row)),
        transposed_keys(take.floats(sizes.keys * sizes.row)),
        transposed_values(take.floats(sizes.keys * sizes.row)),
        of_keys(take.floats(sizes.keys * sizes.row)),
        of_values(take.floats(sizes.keys * sizes.row)),
        query(take.floats(kBlock * sizes.row)),
        upstream(take.floats(kBlock * sizes.row)),
        result(take.floats(kBlock * sizes.row)),
        weights(take.floats(kBlock * sizes.keys)),
        of_scores(take.floats(kBlock * sizes.keys)) {}
  float *keys, *transposed_keys, *transposed_values, *of_keys, *of_values;
  float *query, *upstream, *result, *weights, *of_scores;
};

/// The parts of amx.cpp. Rows are a line longer than they need to be: lines a multiple of 4 KiB apart share
/// a place in the cache.
struct TileForwardParts {
  ZERO_INLINE TileForwardParts(Scratch& take, const Sizes& sizes)
      : score_row(sizes.keys + 16),
        weight_row(sizes.keys + 32),
        keys(take.halves(sizes.keys * sizes.row)),
        values(take.halves(sizes.keys * sizes.row)),
        query(take.halves(kBlock * sizes.row)),
        scores(take.floats(kBlock * score_row)),
        weights(take.split(kBlock * weight_row)),
        result(take.floats(kBlock * sizes.row)) {}
  int64_t score_row, weight_row;
  char *keys, *values, *query;  // packed
  float* scores;
  Split weights;
  float* result;
};

struct TileBackwardParts {
  ZERO_INLINE TileBackwardParts(Scratch& take, const Sizes& sizes)
      : score_row(sizes.keys + 16),
        weight_row(sizes.keys + 32),
        keys(take.halves(sizes.keys * sizes.row)),
        values(take.halves(sizes.keys * sizes.row)),
        paired_keys(take.halves(sizes.keys * sizes.row)),
        query(take.halves(kBlock * sizes.row)),
        upstream(take.halves(kBlock * sizes.row)),
        transposed_query(take.halves(kBlock * sizes.row)),
        transposed_upstream(take.halves(kBlock * sizes.row)),
        of_keys(take.floats(sizes.row * score_row)),
        of_values(take.floats(sizes.row * score_row)),
        scores(take.floats(kBlock * score_row)),
        of_weights(take.floats(kBlock * score_row)),
        paired_weights(take.split(kBlock * sizes.keys)),
        paired_scores(take.split(kBlock * sizes.keys)),
        rows_of_scores(take.split(kBlock * weight_row)),
        result(take.floats(kBlock * sizes.row)) {}
  int64_t score_row, weight_row;
  char *keys, *values, *paired_keys;                                // packed
  char *query, *upstream, *transposed_query, *transposed_upstream;  // packed
  float *of_keys, *of_values;                                       // transposed
  float *scores, *of_weights;
  Split paired_weights, paired_scores, rows_of_scores;
  float* result;
};

}  // namespace zero::attention

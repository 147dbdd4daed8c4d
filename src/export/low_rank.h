#pragma once
// Low-rank adapters merged into the weights they belong to: W + scale * B A, in fp32.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zero/checkpoint.h"

namespace zero::exporting {

/// Where the adapter of a weight [out, in] is: A [rank, in] and B [out, rank].
struct LowRank {
  std::string a, b;     // names in the checkpoint
  double scale = 1;     // alpha / rank
  bool in_out = false;  // the weight is stored as [in, out]
};

/// What an adapter adds to a weight. Holds A and B as fp32.
class LowRankUpdate {
 public:
  /// `shape`: of the stored weight. Throws Corrupt where the three do not fit together, Io.
  LowRankUpdate(const CheckpointReader& reader, const LowRank& adapter, std::span<const int64_t> shape);
  /// To the weight's elements [begin, begin + values.size()), in row-major order.
  void add_to(int64_t begin, std::span<float> values);

 private:
  void add_to_row(int64_t row, int64_t first_column, std::span<float> values);

  int64_t rank_ = 0, columns_ = 0;
  float scale_;
  std::vector<float> left_, right_;  // [rows, rank] and [rank, columns]: their product is as the weight
  std::vector<float> sum_;
};

}  // namespace zero::exporting

#include "stages/same_values.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "mesh/agree.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// Sums over bits, weighed by where they stand: the same however elements are spread over ranks.
int64_t checksum_of_own(ShardedModel& model, int parameter) {
  constexpr int64_t kPieceNumel = 1 << 20;
  const OwnWork own;
  const auto lease = model.unit_of(parameter).lend_values(StateStore::Use::Read);
  const at::Tensor values = model.unit_of(parameter).values(lease);
  int64_t sum = 0;
  for (const ShardSegment& segment : model.segments_of_parameter(parameter))
    for (int64_t at = 0; at < segment.numel(); at += kPieceNumel) {
      const int64_t numel = std::min(kPieceNumel, segment.numel() - at);
      const at::Tensor bits = values.narrow(0, segment.begin + at, numel)
                                  .to(at::kFloat)
                                  .contiguous()
                                  .view(at::kInt)
                                  .to(at::kLong);
      const int64_t from = segment.parameter_begin + at;
      const at::Tensor weights = at::arange(from, from + numel, bits.options()).mul_(2).add_(1);
      sum += (bits * weights).sum().item<int64_t>();
    }
  return sum;
}

}  // namespace

void require_same_values(ShardedModel& model, const std::vector<TiedParameter>& tied,
                         const std::vector<int>& numbers) {
  if (tied.empty()) return;
  // Of each parameter the sum of this rank's part; replicas of a shard count once.
  std::string mine;
  for (size_t i = 0; i < tied.size(); ++i) {
    const bool counts = numbers[i] >= 0 && model.replica_group.rank() == 0;
    const int64_t sum = counts ? checksum_of_own(model, numbers[i]) : 0;
    const int64_t row[2] = {numbers[i] >= 0, sum};
    mine.append(reinterpret_cast<const char*>(row), sizeof row);
  }
  const std::string along_dp = gather_bytes(model.mesh, model.all, mine, "tied parameters");
  std::string sums(mine.size(), '\0');
  for (size_t at = 0; at < mine.size(); at += sizeof(int64_t)) {
    uint64_t total = 0;
    for (size_t rank = 0; rank < along_dp.size(); rank += mine.size()) {
      uint64_t one = 0;
      std::memcpy(&one, along_dp.data() + rank + at, sizeof one);
      total += one;
    }
    std::memcpy(sums.data() + at, &total, sizeof total);
  }
  const Group pipeline = model.mesh.group("pp");
  const std::string all = gather_bytes(model.mesh, pipeline, sums, "tied parameters");
  for (size_t i = 0; i < tied.size(); ++i) {
    std::optional<int64_t> first;
    for (size_t rank = 0; rank < all.size(); rank += mine.size()) {
      int64_t row[2];
      std::memcpy(row, all.data() + rank + i * sizeof row, sizeof row);
      if (row[0] == 0) continue;
      require(first.value_or(row[1]) == row[1], ErrorKind::Config, tied[i].name,
              "stages that share it begin with other values",
              "build the module from the same seed on all ranks");
      first = row[1];
    }
  }
}

}  // namespace zero::detail

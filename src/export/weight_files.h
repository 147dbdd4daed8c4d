#pragma once
// Files of whole tensors, filled front to back from a checkpoint.

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "export/low_rank.h"
#include "hf/weights.h"
#include "zero/checkpoint.h"

namespace zero::exporting {

/// A tensor of the output and where its values come from.
struct ExportedTensor {
  hf::NewTensor tensor;
  std::string stored;                   // name in the checkpoint
  std::optional<LowRank> adapter = {};  // merged into it
};

/// Hands out a stored tensor's values, some MiB at a time, merged with an adapter and converted.
class TensorSource {
 public:
  explicit TensorSource(const CheckpointReader& reader) : reader_(reader) {}
  void read(const ExportedTensor& tensor, const std::function<void(std::span<const std::byte>)>& sink);

 private:
  void merge(LowRankUpdate& update, int64_t begin, Dtype dtype, const std::string& name);

  const CheckpointReader& reader_;
  std::vector<std::byte> stored_, merged_, converted_;
};

void write_safetensors(const std::filesystem::path& path, std::span<const ExportedTensor> tensors,
                       TensorSource& source);
void write_pytorch(const std::filesystem::path& path, std::span<const ExportedTensor> tensors,
                   TensorSource& source);

}  // namespace zero::exporting

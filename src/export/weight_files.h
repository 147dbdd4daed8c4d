#pragma once
// Files of whole tensors, filled front to back from a checkpoint.

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "export/frozen_files.h"
#include "export/low_rank.h"
#include "hf/weights.h"
#include "zero/checkpoint.h"

namespace zero::exporting {

/// A tensor of the output and where its values come from.
struct ExportedTensor {
  hf::NewTensor tensor;
  std::string stored;                   // name in the checkpoint
  std::string left_out = {};            // not empty: of the parameter in the files of the frozen ones instead
  std::optional<LowRank> adapter = {};  // merged into it
};

/// Hands out a stored tensor's values, some MiB at a time, merged with an adapter and converted.
class TensorSource {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  /// `frozen`: null where the checkpoint leaves nothing out.
  explicit TensorSource(const CheckpointReader& reader, const FrozenFiles* frozen = nullptr)
      : reader_(reader), frozen_(frozen) {}
  void read(const ExportedTensor& tensor, const Sink& sink);

 private:
  void read_stored(const ExportedTensor& tensor, LowRankUpdate* update, const Sink& sink);
  void read_frozen(const ExportedTensor& tensor, LowRankUpdate* update, const Sink& sink);
  /// What was read of a tensor, from element `begin` on.
  void hand_out(const ExportedTensor& tensor, Dtype dtype, int64_t begin, LowRankUpdate* update,
                const Sink& sink);

  const CheckpointReader& reader_;
  const FrozenFiles* frozen_;
  std::vector<std::byte> read_, merged_, converted_;
};

void write_safetensors(const std::filesystem::path& path, std::span<const ExportedTensor> tensors,
                       TensorSource& source);
void write_pytorch(const std::filesystem::path& path, std::span<const ExportedTensor> tensors,
                   TensorSource& source);

}  // namespace zero::exporting

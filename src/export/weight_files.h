#pragma once
// Files of whole tensors, filled front to back from a checkpoint.

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hf/weights.h"
#include "zero/checkpoint.h"

namespace zero::exporting {

/// A tensor of the output and where its values come from.
struct ExportedTensor {
  hf::NewTensor tensor;
  std::string stored;  // name in the checkpoint
};

/// Hands out a stored tensor's values, some MiB at a time and converted.
class TensorSource {
 public:
  explicit TensorSource(const CheckpointReader& reader) : reader_(reader) {}
  void read(const ExportedTensor& tensor, const std::function<void(std::span<const std::byte>)>& sink);

 private:
  const CheckpointReader& reader_;
  std::vector<std::byte> stored_, converted_;
};

void write_safetensors(const std::filesystem::path& path, std::span<const ExportedTensor> tensors,
                       TensorSource& source);
void write_pytorch(const std::filesystem::path& path, std::span<const ExportedTensor> tensors,
                   TensorSource& source);

}  // namespace zero::exporting

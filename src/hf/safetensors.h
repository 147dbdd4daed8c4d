#pragma once
// safetensors files as Hugging Face's libraries write and read them.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "checkpoint/file_io.h"
#include "checkpoint/safetensors.h"

namespace zero::hf {

using checkpoint::data_bytes;
using checkpoint::FileTensor;
using checkpoint::NewTensor;

/// One file, open for reading. The header is read and checked at once. Links are followed: the Hub's cache
/// consists of them. Throws Io and Corrupt naming file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path)
      : file_(checkpoint::File::open(path, checkpoint::Links::Follow)),
        header_(checkpoint::read_header(file_, path)) {}

  const std::map<std::string, FileTensor>& tensors() const { return header_.tensors; }

  /// Fills `out` from byte `offset` of the file. Any thread. Throws Io, and Corrupt where the file has become
  /// shorter.
  void read_at(int64_t offset, std::span<std::byte> out) const { file_.read_at(offset, out); }
  /// As checkpoint::File::map().
  std::shared_ptr<const std::byte> map(int64_t offset, int64_t bytes) const {
    return file_.map(offset, bytes);
  }

 private:
  checkpoint::File file_;
  checkpoint::Header header_;
};

/// checkpoint::make_header() with the format that readers of Hugging Face look for.
inline std::string safetensors_header(std::span<const NewTensor> tensors) {
  return checkpoint::make_header(tensors, {{"format", "pt"}});
}

}  // namespace zero::hf

#pragma once
// safetensors files of tensors with any number of dimensions, as others write and read them. The pieces of
// our own checkpoints are src/checkpoint's.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "zero/dtype.h"

namespace zero::hf {

/// A tensor of a file.
struct StoredTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  int64_t begin_byte = 0;  // of the file
};

/// One file, open for reading. The header is read and checked at once: lengths, types, shapes, and that the
/// tensors cover the data without gaps or overlaps. Throws Io and Corrupt naming file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

  /// Maps bytes [begin, begin + count) of the file a window at a time, in order, and hands each to `sink`; no
  /// more than one window is in memory. Any thread. Throws Io, and Corrupt where the file has become shorter.
  void read(int64_t begin, int64_t count, const std::function<void(std::span<const std::byte>)>& sink) const;

 private:
  int64_t size_bytes() const;
  void parse(const std::string& header, int64_t data_begin);

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::map<std::string, StoredTensor> tensors_;
};

/// A tensor to be written.
struct NewTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
};

/// Everything before the data of a file with these tensors one after the other. Throws Unsupported for a
/// header beyond the 100 MB that readers of the format accept, Usage for sizes that overflow.
std::string safetensors_header(std::span<const NewTensor> tensors);

/// Bytes of a tensor's data. Throws Usage where they overflow.
int64_t data_bytes(const NewTensor& tensor);

/// "[2, 3]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace zero::hf

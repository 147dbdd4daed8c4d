#pragma once
// The weights of a Hugging Face model directory: model.safetensors, or several files and
// model.safetensors.index.json that says which tensor is where.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hf/safetensors.h"
#include "zero/box.h"

namespace zero::hf {

/// Immutable; every function may be called from several threads at once.
class Weights {
 public:
  /// Opens `NAME.safetensors` of a directory, or the files of `NAME.safetensors.index.json`. Throws Config
  /// where there is neither, Io, and Corrupt for files that are not what the format demands, an index that
  /// names a file outside the directory, and tensors that are in two files, in another than the index says,
  /// or in none.
  explicit Weights(const std::filesystem::path& directory, const std::string& name = "model");

  std::vector<std::string> names() const;
  /// nullptr: no tensor of that name.
  const FileTensor* find(const std::string& name) const;

  /// A range of a box of a tensor of type fp32, bf16 or fp16, in row-major order of the box. Reads what lies
  /// between its first element and its last in the file, a MiB at a time, or only the box' rows where they
  /// are far apart. Throws Usage for another range or name, Unsupported for another type, and as
  /// SafetensorsFile::read_at.
  void read(const std::string& name, const BoxRange& range, std::span<float> out) const;

  /// The bytes of a tensor as they lie in its file, mapped read-only (checkpoint::File::map). Throws Usage
  /// for another name, Io, and Corrupt where the file has become shorter.
  std::shared_ptr<const std::byte> map(const std::string& name) const;

  const std::filesystem::path& directory() const { return directory_; }

 private:
  void open_index(const std::filesystem::path& index);

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> file_of_;
};

/// Which tensors go into which file, as transformers names and splits them.
struct OutputFile {
  std::string name;                // "model.safetensors" or "model-00001-of-00003.safetensors"
  std::vector<NewTensor> tensors;  // in the order of their data, which follows safetensors_header() at once
};

/// At most `most_bytes` of data a file; a larger tensor is alone in its file. Throws Usage for no tensors or
/// most_bytes < 1.
std::vector<OutputFile> split_into_files(std::span<const NewTensor> tensors, int64_t most_bytes);

/// The text of model.safetensors.index.json; needed only where there are several files.
std::string index_text(std::span<const OutputFile> files);

}  // namespace zero::hf

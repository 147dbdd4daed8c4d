#pragma once
// safetensors files, ours and others': 8 bytes little-endian length, a header of JSON, padded with spaces to
// a multiple of 8 where we write it, data.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_io.h"
#include "checkpoint/json.h"
#include "zero/box.h"
#include "zero/dtype.h"

namespace zero::checkpoint {

/// A tensor in a file.
struct FileTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  int64_t begin_byte = 0;  // of the file
};

struct Header {
  int64_t data_begin = 0;  // byte of the file
  Json metadata;           // of the file; null: it has none
  std::map<std::string, FileTensor> tensors;
};

/// The type that a file names in the words of its format ("F32", "BF16"). Throws Corrupt for none of these.
Dtype dtype_from_json(const JsonPlace& name);

/// The JSON text of a header that `data_bytes` bytes of data follow. Checks types, shapes, and that the
/// tensors cover the data without gaps or overlaps. Throws Corrupt.
Header parse_header(std::string_view text, int64_t data_bytes, const std::string& place);
/// The same of a file, with its lengths. Throws Corrupt or Io naming the file.
Header read_header(const File& file, const std::filesystem::path& path);

/// A tensor to be written.
struct NewTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
};

/// Bytes of a tensor's data. Throws Usage where they overflow.
int64_t data_bytes(const NewTensor& tensor);

/// Everything before the data of a file with these tensors one after the other. Throws Unsupported for a
/// header beyond the 100 MB that readers of the format accept, Usage for sizes that overflow.
std::string make_header(std::span<const NewTensor> tensors, const Json& metadata);

/// "[0:3,2:4]@BEGIN": where a piece lies in its tensor.
std::string piece_label(const BoxRange& range);
/// The name of a piece in its file: "NAME[0:3,2:4]@BEGIN".
std::string piece_key(const std::string& name, const BoxRange& range);

}  // namespace zero::checkpoint

#pragma once
// The header of a safetensors file: 8 bytes little-endian length, JSON padded with spaces to a multiple of 8,
// data.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_io.h"
#include "zero/dtype.h"

namespace zero::checkpoint {

/// A 1-D tensor of the file. Bytes count from the start of the data.
struct HeaderEntry {
  std::string name;
  Dtype dtype = Dtype::f32;
  int64_t numel = 0;
  int64_t begin_byte = 0;
  int64_t end_byte() const { return begin_byte + numel * itemsize(dtype); }
};

/// The key of a piece: "NAME@BEGIN".
std::string piece_key(const std::string& name, int64_t begin);

/// Everything before the data. Entries lie one after the other from byte 0. Throws Unsupported for a header
/// beyond the 100 MB that readers of the format accept.
std::string make_header(const std::vector<HeaderEntry>& entries, uint64_t save_id);

struct Header {
  uint64_t save_id = 0;
  int64_t data_begin = 0;  // byte of the file
  std::map<std::string, HeaderEntry> entries;
};

/// The JSON text of a header that `data_bytes` bytes of data follow. Checks as read_header. Throws Corrupt.
Header parse_header(std::string_view text, int64_t data_bytes, const std::string& place);

/// Reads and checks a header: lengths, names, and that the entries cover the data without gaps or overlaps.
/// Throws Corrupt or Io naming the file.
Header read_header(const File& file, const std::filesystem::path& path);

}  // namespace zero::checkpoint

#pragma once
// The index: which piece of which tensor lies where. Text form and complete checks; no files are touched
// here.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/json.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::checkpoint {

inline constexpr std::string_view kIndexName = "index.json";
inline constexpr std::string_view kFormat = "zero-checkpoint";
inline constexpr int64_t kVersion = 3;
inline constexpr int64_t kMostIndexBytes = int64_t{1} << 30;
inline constexpr size_t kMostDims = 64;

struct Index {
  int64_t step = 0;
  uint64_t save_id = 0;
  std::map<std::string, int64_t> files;  // name -> bytes; one a rank that wrote
  std::map<std::string, StoredTensor> tensors;
  std::string metadata = "{}";  // a JSON object
};

/// The file's text; its last member is the checksum of everything before it.
std::string to_text(const Index& index);
/// Reads and checks completely. Throws Corrupt; Unsupported for another version.
Index index_from_text(std::string_view text, std::string_view place);

/// Checks files, shapes, pieces and coverage. Throws `kind` naming the tensor.
void check(const Index& index, ErrorKind kind, std::string_view place);

/// Checksums of so many bytes, and of their blocks.
int64_t block_count(int64_t bytes);
std::vector<uint64_t> checksums_of(std::span<const std::byte> bytes);

/// Elements of a shape; nothing for negative sizes, more than kMostDims dims, or where elements or bytes
/// exceed 2^62.
std::optional<int64_t> numel_of(const std::vector<int64_t>& shape, Dtype dtype);

Json to_json(const StoredTensor& tensor);
StoredTensor tensor_from_json(const JsonPlace& json);

/// True for a name that stays inside its directory on every system: letters, digits, '.', '_', '-'; no
/// leading dot.
bool is_plain_name(std::string_view name);

uint64_t checksum_of(std::string_view text);

}  // namespace zero::checkpoint

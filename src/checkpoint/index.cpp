#include "checkpoint/index.h"

#include <xxhash.h>

#include <algorithm>

#include "base/checked.h"
#include "base/shape_text.h"
#include "checkpoint/coverage.h"
#include "checkpoint/safetensors.h"

namespace zero::checkpoint {
namespace {

constexpr std::string_view kChecksumKey = ",\n\"checksum\": \"";
constexpr std::string_view kEnd = "\"\n}\n";
constexpr size_t kHexDigits = 16;

// The text without the checksum and what follows it. Throws Corrupt if it is missing or wrong.
std::string_view checked_body(std::string_view text, std::string_view place) {
  size_t tail = kChecksumKey.size() + kHexDigits + kEnd.size();
  bool complete =
      text.size() > tail && text.ends_with(kEnd) && text.substr(text.size() - tail).starts_with(kChecksumKey);
  require(complete, ErrorKind::Corrupt, place, "the file is incomplete: no checksum at its end",
          "use another checkpoint");
  std::string_view body = text.substr(0, text.size() - tail);
  std::string_view found = text.substr(text.size() - kEnd.size() - kHexDigits, kHexDigits);
  std::string expected = to_hex(checksum_of(body));
  require(found == expected, ErrorKind::Corrupt, place,
          "checksum " + expected + ", but the file says " + std::string(found), "use another checkpoint");
  return body;
}

void require_version(int64_t version, std::string_view place) {
  if (version == kVersion) return;
  const std::string about = "checkpoint format version " + std::to_string(version) + ", this program reads " +
                            std::to_string(kVersion);
  require(version > kVersion, ErrorKind::Unsupported, place,
          about + "; a development version of zero.cpp before 0.1.0 wrote it",
          "make ordinary files of it with that version's `zero consolidate`, and begin with them "
          "(model.from)");
  fail(ErrorKind::Unsupported, place, about + "; a later zero.cpp wrote it", "read it with that version");
}

Index index_from_json(const JsonPlace& json) {
  const std::string& place = json.place();
  require(json["format"].string() == kFormat, ErrorKind::Corrupt, place,
          "not a checkpoint index: format is not \"" + std::string(kFormat) + "\"");
  require_version(json["version"].count(), place);
  const JsonPlace metadata = json["metadata"];
  metadata.require_object();
  Index index{.step = json["step"].count(),
              .save_id = json["save_id"].hex64(),
              .files = {},
              .tensors = {},
              .metadata = metadata.value().dump()};
  for (const auto& [name, bytes] : json["files"].members()) index.files.emplace(name, bytes.count());
  const int64_t world = json["world"].count();
  require(world == std::ssize(index.files), ErrorKind::Corrupt, place,
          "world is " + std::to_string(world) + ", but there are " + std::to_string(index.files.size()) +
              " files");
  for (const auto& [name, tensor] : json["tensors"].members())
    index.tensors.emplace(name, tensor_from_json(tensor));
  return index;
}

// Checks one tensor on its own. `fail_at` throws with the tensor's name.
template <typename Fail>
void check_tensor(const StoredTensor& tensor, const std::map<std::string, int64_t>& files, Fail fail_at) {
  if (!numel_of(tensor.shape, tensor.dtype)) fail_at("its shape is negative or too large");
  for (const StoredPiece& piece : tensor.pieces) {
    auto file = files.find(piece.file);
    if (file == files.end()) fail_at("a piece is in file " + in_quotes(piece.file) + ", which is not listed");
    if (piece.range.numel < 1 || !piece.range.is_inside(tensor.shape))
      fail_at("piece " + piece_label(piece.range) + " of " + std::to_string(piece.range.numel) +
              " elements is empty or outside its shape " + shape_text(tensor.shape));
    int64_t bytes = piece.range.numel * itemsize(tensor.dtype);
    if (piece.offset_bytes < 8 || bytes > file->second || piece.offset_bytes > file->second - bytes)
      fail_at("a piece at byte " + std::to_string(piece.offset_bytes) + " is outside " + piece.file);
    if (static_cast<int64_t>(piece.checksums.size()) != block_count(bytes))
      fail_at("a piece of " + std::to_string(bytes) + " bytes has " + std::to_string(piece.checksums.size()) +
              " checksums, expected " + std::to_string(block_count(bytes)));
  }
  if (const auto problem = coverage_problem(tensor)) fail_at(*problem);
}

// One number a dimension.
std::vector<int64_t> counts_from_json(const JsonPlace& array) {
  require(array.array_size() <= kMostDims, ErrorKind::Corrupt, array.place(),
          "more than " + std::to_string(kMostDims) + " dims");
  std::vector<int64_t> counts;
  for (const JsonPlace& count : array.elements()) counts.push_back(count.count());
  return counts;
}

BoxRange range_from_json(const JsonPlace& piece) {
  const JsonPlace box = piece["box"];
  return {.box = {.begin = counts_from_json(box["begin"]), .size = counts_from_json(box["size"])},
          .begin = piece["begin"].count(),
          .numel = piece["numel"].count()};
}

}  // namespace

uint64_t checksum_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

int64_t block_count(int64_t bytes) { return (bytes + kChecksumBytes - 1) / kChecksumBytes; }

std::vector<uint64_t> checksums_of(std::span<const std::byte> bytes) {
  std::vector<uint64_t> checksums;
  checksums.reserve(block_count(std::ssize(bytes)));
  for (size_t begin = 0; begin < bytes.size(); begin += kChecksumBytes)
    checksums.push_back(
        XXH3_64bits(bytes.data() + begin, std::min<size_t>(kChecksumBytes, bytes.size() - begin)));
  return checksums;
}

bool is_plain_name(std::string_view name) {
  auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 200 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

std::optional<int64_t> numel_of(const std::vector<int64_t>& shape, Dtype dtype) {
  constexpr int64_t kMost = int64_t{1} << 62;
  if (shape.size() > kMostDims) return std::nullopt;
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty |= size == 0;
  }
  if (empty) return 0;
  std::optional<int64_t> bytes = itemsize(dtype);
  for (int64_t size : shape) {
    bytes = checked_multiply(*bytes, size);
    if (!bytes || *bytes > kMost) return std::nullopt;
  }
  return *bytes / itemsize(dtype);
}

Json to_json(const StoredTensor& tensor) {
  Json pieces = Json::array();
  for (const StoredPiece& piece : tensor.pieces) {
    Json checksums = Json::array();
    for (uint64_t checksum : piece.checksums) checksums.push_back(to_hex(checksum));
    pieces.push_back({{"file", piece.file},
                      {"box", {{"begin", piece.range.box.begin}, {"size", piece.range.box.size}}},
                      {"begin", piece.range.begin},
                      {"numel", piece.range.numel},
                      {"offset_bytes", piece.offset_bytes},
                      {"checksums", std::move(checksums)}});
  }
  return {{"dtype", std::string(safetensors_name(tensor.dtype))},
          {"shape", tensor.shape},
          {"pieces", std::move(pieces)}};
}

StoredTensor tensor_from_json(const JsonPlace& json) {
  StoredTensor tensor{
      .dtype = dtype_from_json(json["dtype"]), .shape = counts_from_json(json["shape"]), .pieces = {}};
  for (const JsonPlace& piece : json["pieces"].elements()) {
    StoredPiece& stored =
        tensor.pieces.emplace_back(StoredPiece{.file = piece["file"].string(),
                                               .range = range_from_json(piece),
                                               .offset_bytes = piece["offset_bytes"].count(),
                                               .checksums = {}});
    for (const JsonPlace& checksum : piece["checksums"].elements())
      stored.checksums.push_back(checksum.hex64());
  }
  return tensor;
}

std::string to_text(const Index& index) {
  std::string text =
      "{\n\"format\": " + Json(kFormat).dump() + ",\n\"version\": " + std::to_string(kVersion) +
      ",\n\"step\": " + std::to_string(index.step) + ",\n\"save_id\": \"" + to_hex(index.save_id) +
      "\",\n\"world\": " + std::to_string(index.files.size()) + ",\n\"files\": " + Json(index.files).dump() +
      ",\n\"metadata\": " + index.metadata + ",\n\"tensors\": {";
  const char* separator = "\n";
  for (const auto& [name, tensor] : index.tensors) {
    text.append(separator).append(Json(name).dump()).append(": ").append(to_json(tensor).dump());
    separator = ",\n";
  }
  text += "\n}";
  std::string checksum = to_hex(checksum_of(text));
  return text.append(kChecksumKey).append(checksum).append(kEnd);
}

Index index_from_text(std::string_view text, std::string_view place) {
  const Json json = parse_json(std::string(checked_body(text, place)) + "}", place);
  Index index = index_from_json({json, std::string(place)});
  check(index, ErrorKind::Corrupt, place);
  return index;
}

void check(const Index& index, ErrorKind kind, std::string_view place) {
  for (const auto& [name, bytes] : index.files) {
    require(is_plain_name(name), kind, place, in_quotes(name) + " is not a plain file name");
    require(bytes >= 8, kind, place,
            name + ": " + std::to_string(bytes) + " bytes cannot hold a safetensors file");
  }
  for (const auto& [name, tensor] : index.tensors) {
    auto fail_at = [&, &name = name](const std::string& problem) {
      fail(kind, place, "tensor " + in_quotes(name) + ": " + problem);
    };
    if (name.empty()) fail_at("it has no name");
    check_tensor(tensor, index.files, fail_at);
  }
}

}  // namespace zero::checkpoint

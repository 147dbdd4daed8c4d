#include "checkpoint/safetensors.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/shape_text.h"
#include "zero/error.h"

namespace zero::checkpoint {
namespace {

constexpr int64_t kMostHeaderBytes = 100'000'000;
constexpr size_t kMostFileDims = 64;
constexpr std::string_view kMetadataKey = "__metadata__";

std::string little_endian(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

std::optional<int64_t> numel_of_sizes(std::span<const int64_t> shape) {
  std::optional<int64_t> numel = 1;
  for (const int64_t size : shape)
    if (numel) numel = checked_multiply(*numel, size);
  return numel;
}

FileTensor tensor_from_header(const JsonPlace& json, int64_t data_begin, int64_t data_bytes) {
  FileTensor tensor{.dtype = dtype_from_json(json["dtype"]), .shape = {}};
  const JsonPlace shape = json["shape"], offsets = json["data_offsets"];
  require(shape.array_size() <= kMostFileDims && offsets.array_size() == 2, ErrorKind::Corrupt, json.place(),
          "expected at most 64 dimensions and two offsets");
  for (const JsonPlace& size : shape.elements()) tensor.shape.push_back(size.count());
  const int64_t begin = offsets.at(0).count(), end = offsets.at(1).count();
  const auto numel = numel_of_sizes(tensor.shape);
  const auto bytes = numel ? checked_multiply(*numel, itemsize(tensor.dtype)) : std::nullopt;
  require(begin <= end && end <= data_bytes && bytes == end - begin, ErrorKind::Corrupt, json.place(),
          "elements of " + json["dtype"].string() + " in shape " + shape_text(tensor.shape) +
              " do not fit bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
              std::to_string(data_bytes));
  tensor.numel = *numel;
  tensor.begin_byte = data_begin + begin;
  return tensor;
}

void check_cover(const Header& header, int64_t data_bytes, const std::string& place) {
  std::vector<std::pair<const std::string*, const FileTensor*>> order;
  for (const auto& [name, tensor] : header.tensors) order.emplace_back(&name, &tensor);
  // An empty tensor stands before the one that begins at the same byte.
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin_byte, a.second->numel) <
           std::pair(b.second->begin_byte, b.second->numel);
  });
  int64_t next = header.data_begin;
  for (const auto& [name, tensor] : order) {
    require(tensor->begin_byte == next, ErrorKind::Corrupt, place,
            "tensor " + in_quotes(*name) + " begins at byte " + std::to_string(tensor->begin_byte) +
                ", expected " + std::to_string(next));
    next += tensor->numel * itemsize(tensor->dtype);
  }
  require(next == header.data_begin + data_bytes, ErrorKind::Corrupt, place,
          "its tensors end at byte " + std::to_string(next) + ", the file at " +
              std::to_string(header.data_begin + data_bytes));
}

}  // namespace

Dtype dtype_from_json(const JsonPlace& name) {
  const auto known = dtype_from_safetensors(name.string());
  require(known.has_value(), ErrorKind::Corrupt, name.place(), "unknown dtype " + json_text(name.value()));
  return *known;
}

std::string piece_label(const BoxRange& range) {
  return to_string(range.box) + "@" + std::to_string(range.begin);
}

std::string piece_key(const std::string& name, const BoxRange& range) { return name + piece_label(range); }

int64_t data_bytes(const NewTensor& tensor) {
  const bool positive =
      std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t n) { return n >= 0; });
  const auto numel = positive ? numel_of_sizes(tensor.shape) : std::nullopt;
  const auto bytes = numel ? checked_multiply(*numel, itemsize(tensor.dtype)) : std::nullopt;
  require(bytes.has_value(), ErrorKind::Usage, tensor.name, "impossible shape " + shape_text(tensor.shape));
  return *bytes;
}

std::string make_header(std::span<const NewTensor> tensors, const Json& metadata) {
  std::string json = "{\"__metadata__\":" + metadata.dump();
  int64_t begin = 0;
  for (const NewTensor& tensor : tensors) {
    const auto end = checked_add(begin, data_bytes(tensor));
    require(end.has_value(), ErrorKind::Usage, tensor.name, "a file beyond 2^63 bytes");
    json += "," + Json(tensor.name).dump() + ":{\"dtype\":\"" + std::string(safetensors_name(tensor.dtype)) +
            "\",\"shape\":" + Json(tensor.shape).dump() + ",\"data_offsets\":[" + std::to_string(begin) +
            "," + std::to_string(*end) + "]}";
    begin = *end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  require(std::ssize(json) <= kMostHeaderBytes, ErrorKind::Unsupported, "safetensors",
          "more tensors than the header of one file holds", "choose smaller files");
  return little_endian(json.size()) + json;
}

Header parse_header(std::string_view text, int64_t data_bytes, const std::string& place) {
  Header header{.data_begin = 8 + std::ssize(text), .metadata = {}, .tensors = {}};
  const Json json = parse_json(text, place + ": header");
  for (const auto& [name, value] : JsonPlace(json, place + ": header").members()) {
    if (name == kMetadataKey)
      header.metadata = value.value();
    else
      header.tensors.emplace(name, tensor_from_header(value, header.data_begin, data_bytes));
  }
  check_cover(header, data_bytes, place);
  return header;
}

Header read_header(const File& file, const std::filesystem::path& path) {
  const std::string place = path.string();
  const int64_t file_bytes = file.identity().bytes;
  require(file_bytes >= 8, ErrorKind::Corrupt, place, "too short for a safetensors file");
  unsigned char length_bytes[8];
  file.read_at(0, std::as_writable_bytes(std::span(length_bytes)));
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= uint64_t{length_bytes[i]} << (8 * i);
  require(length <= static_cast<uint64_t>(std::min(kMostHeaderBytes, file_bytes - 8)), ErrorKind::Corrupt,
          place, "its header claims " + std::to_string(length) + " bytes");
  std::string text(length, '\0');
  file.read_at(8, std::as_writable_bytes(std::span(text)));
  return parse_header(text, file_bytes - 8 - static_cast<int64_t>(length), place);
}

}  // namespace zero::checkpoint

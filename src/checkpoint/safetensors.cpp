#include "checkpoint/safetensors.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "checkpoint/json.h"
#include "zero/error.h"

namespace zero::checkpoint {
namespace {

constexpr int64_t kMostHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

std::string little_endian(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

HeaderEntry entry_from_json(const std::string& name, const Json& json, int64_t data_bytes,
                            std::string_view place) {
  require(json.is_object(), ErrorKind::Corrupt, place, "expected an object");
  HeaderEntry entry{.name = name};
  std::string dtype = text_member(json, "dtype", place);
  auto known = dtype_from_safetensors(dtype);
  require(known.has_value(), ErrorKind::Corrupt, place, "unknown dtype " + in_quotes(dtype));
  entry.dtype = *known;
  const Json& shape = member(json, "shape", Json::value_t::array, place);
  const Json& offsets = member(json, "data_offsets", Json::value_t::array, place);
  require(shape.size() == 1 && offsets.size() == 2, ErrorKind::Corrupt, place,
          "expected one dimension and two offsets");
  entry.numel = count_value(shape[0], "shape", place);
  entry.begin_byte = count_value(offsets[0], "data_offsets", place);
  int64_t end = count_value(offsets[1], "data_offsets", place);
  bool fits = entry.begin_byte <= end && end <= data_bytes &&
              checked_multiply(entry.numel, itemsize(entry.dtype)) == end - entry.begin_byte;
  require(fits, ErrorKind::Corrupt, place,
          std::to_string(entry.numel) + " elements of " + dtype + " do not fit bytes " +
              std::to_string(entry.begin_byte) + " to " + std::to_string(end) + " of " +
              std::to_string(data_bytes));
  return entry;
}

void check_cover(const Header& header, int64_t data_bytes, const std::string& place) {
  std::vector<const HeaderEntry*> order;
  for (const auto& [name, entry] : header.entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const HeaderEntry* a, const HeaderEntry* b) { return a->begin_byte < b->begin_byte; });
  int64_t next = 0;
  for (const HeaderEntry* entry : order) {
    require(entry->begin_byte == next, ErrorKind::Corrupt, place,
            "tensor " + in_quotes(entry->name) + " begins at byte " + std::to_string(entry->begin_byte) +
                ", expected " + std::to_string(next));
    next = entry->end_byte();
  }
  require(next == data_bytes, ErrorKind::Corrupt, place,
          "the header describes " + std::to_string(next) + " bytes of data, the file has " +
              std::to_string(data_bytes));
}

}  // namespace

std::string piece_key(const std::string& name, int64_t begin) { return name + "@" + std::to_string(begin); }

std::string make_header(const std::vector<HeaderEntry>& entries, uint64_t save_id) {
  std::string json = "{\"__metadata__\":" + Json{{"format", "zero"}, {"save_id", to_hex(save_id)}}.dump();
  for (const HeaderEntry& entry : entries)
    json += "," + Json(entry.name).dump() + ":{\"dtype\":\"" + std::string(safetensors_name(entry.dtype)) +
            "\",\"shape\":[" + std::to_string(entry.numel) + "],\"data_offsets\":[" +
            std::to_string(entry.begin_byte) + "," + std::to_string(entry.end_byte()) + "]}";
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  require(static_cast<int64_t>(json.size()) <= kMostHeaderBytes, ErrorKind::Unsupported, "checkpoint",
          "more pieces than the header of one safetensors file holds");
  return little_endian(json.size()) + json;
}

Header parse_header(std::string_view text, int64_t data_bytes, const std::string& place) {
  Header header{.save_id = 0, .data_begin = 8 + static_cast<int64_t>(text.size()), .entries = {}};
  Json json = parse_object(text, place + ": header");
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) continue;
    std::string entry_place = place + ": header: " + in_quotes(name);
    header.entries.emplace(name, entry_from_json(name, value, data_bytes, entry_place));
  }
  const Json& metadata = member(json, kMetadataKey, Json::value_t::object, place + ": header");
  header.save_id = hex_member(metadata, "save_id", place + ": header");
  check_cover(header, data_bytes, place);
  return header;
}

Header read_header(const File& file, const std::filesystem::path& path) {
  std::string place = path.string();
  int64_t file_bytes = file.identity().bytes;
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

#include "export/zip.h"

#include <zlib.h>

#include <algorithm>

#include "zero/error.h"

namespace zero::exporting {
namespace {

constexpr uint32_t kFull = 0xffffffff;
constexpr uint64_t kAlignment = 64;
constexpr size_t kLocalHeaderBytes = 30;
constexpr size_t kCrcOffset = 14;                       // in the local header
constexpr uint16_t kDate = 1 << 5 | 1;                  // 1980-01-01: the same model gives the same bytes
constexpr uint16_t kVersion = 45;                       // of readers that know zip64
constexpr uint16_t kZip64 = 0x0001, kPadding = 0x4246;  // extra fields; the padding's id is PyTorch's

// Integers, least significant byte first.
template <class... Values>
std::string little_endian_bytes(Values... values) {
  std::string bytes;
  auto add = [&](auto value) {
    for (size_t i = 0; i < sizeof value; ++i)
      bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
  };
  (add(values), ...);
  return bytes;
}

std::string large_field(const std::string& values) {
  return little_endian_bytes(kZip64, static_cast<uint16_t>(values.size())) + values;
}

}  // namespace

ZipWriter::ZipWriter(const std::filesystem::path& path, uint64_t most_small)
    : file_(path), most_small_(most_small) {}

void ZipWriter::put(std::string_view bytes) { file_.add(std::as_bytes(std::span(bytes))); }

// The checksum is not known yet: finish() puts it in.
std::string ZipWriter::local_header(const Entry& entry) const {
  std::string extra = entry.is_large ? large_field(little_endian_bytes(entry.bytes, entry.bytes)) : "";
  const uint64_t data = entry.offset + kLocalHeaderBytes + entry.name.size() + extra.size() + 4;
  const uint64_t padding = (kAlignment - data % kAlignment) % kAlignment;
  extra += little_endian_bytes(kPadding, static_cast<uint16_t>(padding)) + std::string(padding, 'Z');
  const uint32_t size = entry.is_large ? kFull : static_cast<uint32_t>(entry.bytes);
  return little_endian_bytes(uint32_t{0x04034b50}, kVersion, uint16_t{0}, uint16_t{0}, uint16_t{0}, kDate,
                             uint32_t{0}, size, size, static_cast<uint16_t>(entry.name.size()),
                             static_cast<uint16_t>(extra.size())) +
         entry.name + extra;
}

std::string ZipWriter::central_header(const Entry& entry) {
  const std::string extra =
      entry.is_large ? large_field(little_endian_bytes(entry.bytes, entry.bytes, entry.offset)) : "";
  const uint32_t size = entry.is_large ? kFull : static_cast<uint32_t>(entry.bytes);
  return little_endian_bytes(uint32_t{0x02014b50}, kVersion, kVersion, uint16_t{0}, uint16_t{0}, uint16_t{0},
                             kDate, entry.crc, size, size, static_cast<uint16_t>(entry.name.size()),
                             static_cast<uint16_t>(extra.size()), uint16_t{0}, uint16_t{0}, uint16_t{0},
                             uint32_t{0}, entry.is_large ? kFull : static_cast<uint32_t>(entry.offset)) +
         entry.name + extra;
}

void ZipWriter::add(const std::string& name, int64_t bytes, const std::function<void(const Sink&)>& write) {
  Entry entry{.name = name,
              .offset = static_cast<uint64_t>(file_.position()),
              .bytes = static_cast<uint64_t>(bytes),
              .crc = 0,
              .is_large = false};
  entry.is_large = std::max(entry.bytes, entry.offset) > most_small_;
  put(local_header(entry));
  uint64_t written = 0;
  write([&](std::span<const std::byte> part) {
    if (part.empty()) return;  // zlib takes a null pointer for a new start
    entry.crc = static_cast<uint32_t>(
        crc32_z(entry.crc, reinterpret_cast<const unsigned char*>(part.data()), part.size()));
    file_.add(part);
    written += part.size();
  });
  require(written == entry.bytes, ErrorKind::Internal, name, "an entry of another size than it was said");
  file_.patch(static_cast<int64_t>(entry.offset + kCrcOffset), little_endian_bytes(entry.crc));
  entries_.push_back(std::move(entry));
}

void ZipWriter::add(const std::string& name, std::string_view data) {
  add(name, static_cast<int64_t>(data.size()),
      [&](const Sink& sink) { sink(std::as_bytes(std::span(data))); });
}

void ZipWriter::finish() {
  const auto begin = static_cast<uint64_t>(file_.position());
  for (const Entry& entry : entries_) put(central_header(entry));
  const auto end = static_cast<uint64_t>(file_.position()), count = uint64_t{entries_.size()};
  const bool is_large = end > most_small_ || count >= 0xffff;
  if (is_large) {
    put(little_endian_bytes(uint32_t{0x06064b50}, uint64_t{44}, kVersion, kVersion, uint32_t{0}, uint32_t{0},
                            count, count, end - begin, begin));
    put(little_endian_bytes(uint32_t{0x07064b50}, uint32_t{0}, end, uint32_t{1}));
  }
  const auto few = is_large ? uint16_t{0xffff} : static_cast<uint16_t>(count);
  put(little_endian_bytes(uint32_t{0x06054b50}, uint16_t{0}, uint16_t{0}, few, few,
                          is_large ? kFull : static_cast<uint32_t>(end - begin),
                          is_large ? kFull : static_cast<uint32_t>(begin), uint16_t{0}));
  file_.finish();
}

}  // namespace zero::exporting

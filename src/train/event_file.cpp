#include "train/event_file.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>

#include "train/protobuf.h"
#include "zero/error.h"

namespace zero::training {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0u);
    table[byte] = value;
  }
  return table;
}();

// Event { wall_time = 1; step = 2; file_version = 3; summary = 5; session_log = 7 }
std::string event(int64_t step) {
  const double now_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string out;
  append_key(out, 1, kFixed64);
  append_bytes(out, now_s);
  append_key(out, 2, kVarint);
  append_varint(out, static_cast<uint64_t>(step));
  return out;
}

// TFRecord's guard against checksums of checksums.
uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

// "DIRECTORY/events.out.tfevents.SECONDS.HOST.PID."; makes the directory.
std::filesystem::path prefix_in(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  require(!error, ErrorKind::Io, directory.string(), "cannot make the directory: " + error.message());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return directory / ("events.out.tfevents." + std::to_string(seconds) + "." + host_name() + "." +
                      std::to_string(::getpid()) + ".");
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& directory, int64_t first_step)
    : file_(AppendFile::make_new(prefix_in(directory))) {
  std::string version = event(0);
  append_text(version, 3, "brain.Event:2");
  write_record(version);
  constexpr char kStart[] = {1 << 3 | kVarint, 1};  // SessionLog { status = 1: START }
  std::string start = event(first_step);
  append_text(start, 7, std::string_view(kStart, sizeof kStart));
  write_record(start);
}

void EventFile::add(int64_t step, Scalars scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string one;  // Summary.Value { tag = 1; simple_value = 2 }
    append_text(one, 1, tag);
    append_key(one, 2, kFixed32);
    append_bytes(one, static_cast<float>(value));
    append_text(summary, 1, one);
  }
  std::string message = event(step);
  append_text(message, 5, summary);
  write_record(message);
}

void EventFile::write_record(const std::string& message) {
  std::string record;
  append_bytes(record, static_cast<uint64_t>(message.size()));
  append_bytes(record, masked(crc32c(record)));
  record += message;
  append_bytes(record, masked(crc32c(message)));
  file_.append(record);
}

}  // namespace zero::training

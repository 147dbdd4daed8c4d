#include "train/wandb_run.h"

#include <unistd.h>
#include <zlib.h>

#include <array>
#include <charconv>
#include <climits>
#include <cmath>
#include <ctime>
#include <random>

#include "train/protobuf.h"
#include "zero/error.h"

namespace zero::training {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlockBytes = 32768, kHeaderBytes = 7;
enum Part : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// ":W&B", a magic number and the format's version.
constexpr std::string_view kFileHeader{":W&B\xe1\xbe\0", 7};

// Numbers of wandb_internal.proto's Record.
enum RecordField : uint32_t { kHistory = 2, kSummary = 3, kRun = 17, kExit = 18, kHeader = 21 };

std::string new_id() {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device random;
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string id;
  for (int i = 0; i < 8; ++i) id += kLetters[letter(random)];
  return id;
}

std::string local_time(std::chrono::system_clock::time_point when) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm parts{};
  std::array<char, 32> text{};
  localtime_r(&seconds, &parts);
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &parts)};
}

fs::path make_file_path(const fs::path& directory, const std::string& id,
                        std::chrono::system_clock::time_point when) {
  const fs::path run = directory / ("offline-run-" + local_time(when) + "-" + id);
  std::error_code error;
  fs::create_directories(run / "files", error);
  require(!error, ErrorKind::Io, run.string(), "cannot make the directory: " + error.message());
  return run / ("run-" + id + ".wandb");
}

// As Python's json writes numbers that JSON does not have.
std::string number_json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// HistoryItem and SummaryItem { nested_key = 2; value_json = 16 }
void append_item(std::string& out, std::string_view key, std::string_view json) {
  std::string item;
  append_text(item, 2, key);
  append_text(item, 16, json);
  append_text(out, 1, item);
}

// ConfigRecord { update = 1 }, ConfigItem { key = 1; value_json = 16 }
std::string config_record(const WandbAbout& about) {
  std::string record;
  for (const auto& [key, json] : about.config) {
    std::string item;
    append_text(item, 1, key);
    append_text(item, 16, json);
    append_text(record, 1, item);
  }
  return record;
}

// RunRecord { run_id = 1; entity; project; config; run_group = 6; display_name = 8; host = 13; start_time =
// 17 }
std::string run_record(const WandbAbout& about, const std::string& id,
                       std::chrono::system_clock::time_point begin) {
  std::string record;
  append_text(record, 1, id);
  if (!about.team.empty()) append_text(record, 2, about.team);
  append_text(record, 3, about.project);
  append_text(record, 4, config_record(about));
  if (!about.group.empty()) append_text(record, 6, about.group);
  if (!about.name.empty()) append_text(record, 8, about.name);
  std::array<char, HOST_NAME_MAX + 1> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) append_text(record, 13, host.data());
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(begin.time_since_epoch()).count();
  constexpr int64_t kSecond = 1'000'000'000;
  std::string time;  // Timestamp { seconds = 1; nanos = 2 }
  append_number(time, 1, ns / kSecond);
  append_number(time, 2, ns % kSecond);
  append_text(record, 17, time);
  return record;
}

}  // namespace

std::string wandb_log_record(std::string_view bytes, uint64_t offset) {
  std::string out;
  for (bool first = true, last = false; !last; first = false) {
    uint64_t left = kBlockBytes - (offset + out.size()) % kBlockBytes;
    if (left < kHeaderBytes) {
      out.append(left, '\0');
      left = kBlockBytes;
    }
    const std::string_view part = bytes.substr(0, left - kHeaderBytes);
    bytes.remove_prefix(part.size());
    last = bytes.empty();
    const uint8_t type = first ? (last ? kFull : kFirst) : (last ? kLast : kMiddle);
    uLong crc = ::crc32(0, &type, 1);
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(part.data()), static_cast<uInt>(part.size()));
    append_bytes(out, static_cast<uint32_t>(crc));
    append_bytes(out, static_cast<uint16_t>(part.size()));
    append_bytes(out, type);
    out += part;
  }
  return out;
}

WandbRun::WandbRun(const fs::path& directory, const WandbAbout& about)
    : WandbRun(directory, about, new_id()) {}

WandbRun::WandbRun(const fs::path& directory, const WandbAbout& about, std::string id)
    : id_(std::move(id)),
      begin_(std::chrono::system_clock::now()),
      file_(make_file_path(directory, id_, begin_)) {
  file_.append(kFileHeader);
  file_bytes_ = kFileHeader.size();
  std::string version, header;  // HeaderRecord { version_info = 1 { producer = 1 } }
  append_text(version, 1, "zero.cpp");
  append_text(header, 1, version);
  write_record(kHeader, header);
  write_record(kRun, run_record(about, id_, begin_));
}

double WandbRun::runtime_s() const {
  return std::chrono::duration<double>(std::chrono::system_clock::now() - begin_).count();
}

void WandbRun::add(int64_t step, EventFile::Scalars scalars) {
  if (step_ != step) write_row();
  step_ = step;
  row_.insert(row_.end(), scalars.begin(), scalars.end());
}

void WandbRun::write_row() {
  if (!step_) return;
  const double now_s = std::chrono::duration<double>(begin_.time_since_epoch()).count() + runtime_s();
  std::string items;
  for (const auto& [key, value] : row_) append_item(items, key, number_json(value));
  append_item(items, "_timestamp", number_json(now_s));
  append_item(items, "_runtime", number_json(runtime_s()));
  append_item(items, "_step", std::to_string(*step_));
  write_record(kSummary, items);
  std::string step;
  append_number(step, 1, *step_);
  append_text(items, 2, step);  // HistoryRecord { item = 1; step = 2 { num = 1 } }
  write_record(kHistory, items);
  step_.reset();
  row_.clear();
}

void WandbRun::finish() {
  write_row();
  std::string exit;  // RunExitRecord { exit_code = 1; runtime = 2 }
  append_number(exit, 1, 0);
  append_number(exit, 2, std::llround(runtime_s()));
  write_record(kExit, exit);
}

// Record { num = 1; ...; _info = 200 { stream_id = 1 } }
void WandbRun::write_record(uint32_t field, std::string_view message) {
  std::string record, info;
  append_number(record, 1, ++records_);
  append_text(record, field, message);
  append_text(info, 1, id_);
  append_text(record, 200, info);
  const std::string bytes = wandb_log_record(record, file_bytes_);
  file_.append(bytes);
  file_bytes_ += bytes.size();
}

}  // namespace zero::training

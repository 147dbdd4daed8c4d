#include "mesh/beat.h"

#include <charconv>
#include <span>

#include "zero/error.h"

namespace zero::detail {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <typename Int>
Int number(std::string_view text) {
  Int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size(), ErrorKind::Corrupt, "heartbeat",
          "not a number: \"" + std::string(text) + "\"");
  return value;
}

std::string to_text(const Issued& issued) {
  return "\t" + std::to_string(issued.sequence) + "\t" + issued.operation + "\t" +
         std::to_string(issued.numel) + "\t" + one_line(issued.what, 200);
}

// Of the four fields that to_text() gives.
Issued issued_from(std::span<const std::string_view> fields) {
  return {number<uint64_t>(fields[0]), std::string(fields[1]), std::string(fields[3]),
          number<int64_t>(fields[2])};
}

}  // namespace

std::string one_line(std::string_view text, size_t limit) {
  std::string line(text.substr(0, limit));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return line;
}

std::string describe(const Issued& issued) {
  std::string text = issued.operation + " " + issued.what;
  if (issued.sequence != 0) text += " (#" + std::to_string(issued.sequence) + ")";
  return text;
}

void GroupLog::add(Issued issued) {
  recent.push_back(std::move(issued));
  if (recent.size() > kRecent) recent.pop_front();
}

const Issued* GroupLog::last() const {
  for (auto entry = recent.rbegin(); entry != recent.rend(); ++entry)
    if (entry->sequence != 0) return &*entry;
  return nullptr;
}

const Issued* GroupLog::at(uint64_t sequence) const {
  for (const auto& entry : recent)
    if (entry.sequence == sequence) return &entry;
  return nullptr;
}

const GroupLog* Beat::group(std::string_view name) const {
  for (const auto& log : groups)
    if (log.name == name) return &log;
  return nullptr;
}

// Lines: the count; "W group sequence operation numel what" is what it is blocked in; "G name" opens a group;
// "I sequence operation numel what" is one of its operations. Tab separated.
std::string to_text(const Beat& beat) {
  std::string text = std::to_string(beat.count);
  if (!beat.waits_in.empty()) text += "\nW\t" + one_line(beat.waits_in) + to_text(beat.waits_for);
  for (const auto& log : beat.groups) {
    text += "\nG\t" + one_line(log.name);
    for (const auto& entry : log.recent) text += "\nI" + to_text(entry);
  }
  return text;
}

Beat beat_from_text(std::string_view text) {
  Beat beat;
  bool first = true;
  for (std::string_view line : split(text, '\n')) {
    if (first) {
      beat.count = number<uint64_t>(line);
      first = false;
      continue;
    }
    auto fields = split(line, '\t');
    if (fields.size() == 2 && fields[0] == "G") {
      beat.groups.push_back({std::string(fields[1]), {}});
    } else if (fields.size() == 5 && fields[0] == "I" && !beat.groups.empty()) {
      beat.groups.back().add(issued_from(std::span(fields).subspan(1)));
    } else if (fields.size() == 6 && fields[0] == "W") {
      beat.waits_in = fields[1];
      beat.waits_for = issued_from(std::span(fields).subspan(2));
    } else {
      fail(ErrorKind::Corrupt, "heartbeat", "unknown line \"" + std::string(line) + "\"");
    }
  }
  return beat;
}

std::string to_text(const FailureRecord& record) {
  return std::to_string(record.rank) + "\t" + one_line(record.text) + "\n";
}

std::vector<FailureRecord> failures_from_text(std::string_view text) {
  std::vector<FailureRecord> records;
  for (std::string_view line : split(text, '\n')) {
    auto fields = split(line, '\t');
    int rank = 0;
    if (fields.size() != 2) continue;
    auto [end, error] = std::from_chars(fields[0].data(), fields[0].data() + fields[0].size(), rank);
    if (error == std::errc() && end == fields[0].data() + fields[0].size())
      records.push_back({rank, std::string(fields[1])});
  }
  return records;
}

}  // namespace zero::detail

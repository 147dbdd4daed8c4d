#pragma once
// What a rank tells the others about itself through the store, and the text it is told in. Pure data.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace zero::detail {

/// One operation a rank has issued on a group.
struct Issued {
  uint64_t sequence = 0;  // 1, 2, ... per group; 0 for send and receive, which have no common order
  std::string operation;
  std::string what;
  int64_t numel = 0;

  bool operator==(const Issued&) const = default;
};

/// "all_gather h.3 (#12)"
std::string describe(const Issued& issued);

/// The last operations of one group.
struct GroupLog {
  static constexpr size_t kRecent = 16;

  std::string name;
  std::deque<Issued> recent;  // oldest first

  void add(Issued issued);
  /// The last collective; null if none.
  const Issued* last() const;
  /// The collective of that sequence number; null if it is not among the recent ones.
  const Issued* at(uint64_t sequence) const;
};

/// A heartbeat. `count` grows by one each time, so that a reader needs no common clock.
struct Beat {
  uint64_t count = 0;
  std::vector<GroupLog> groups;
  std::string waits_in = {};  // the group of what this rank is blocked in; "" where it is not
  Issued waits_for = {};

  const GroupLog* group(std::string_view name) const;
};

std::string to_text(const Beat& beat);
/// Throws Corrupt.
Beat beat_from_text(std::string_view text);

/// One rank's reason for giving up; `text` is one line.
struct FailureRecord {
  int rank = 0;
  std::string text;
};
std::string to_text(const FailureRecord& record);  // one line with its end
/// Records of several lines; lines that make no sense are left out.
std::vector<FailureRecord> failures_from_text(std::string_view text);

/// The text with tabs, line ends and other control characters as spaces, at most `limit` bytes.
std::string one_line(std::string_view text, size_t limit = 1000);

}  // namespace zero::detail

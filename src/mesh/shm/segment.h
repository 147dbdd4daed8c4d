#pragma once
// Memory that processes of one user on one host map together: a memfd, which has no name, so nothing can be
// left behind. Others open it through /proc/PID/fd; the kernel lets only the same user do so.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace zero::detail::shm {

/// A memfd as other processes of this host find it. The inode guards against a process id that was used
/// again.
struct SegmentName {
  int32_t pid = 0;
  int32_t fd = -1;
  uint64_t inode = 0;
  auto operator<=>(const SegmentName&) const = default;
};

/// Bytes in a segment.
struct Location {
  SegmentName segment;
  uint64_t offset = 0;
  auto operator<=>(const Location&) const = default;
};

/// One mapping of a segment; unmapped when it is destroyed. Pages are huge where the kernel allows it, and
/// come into being when they are first touched.
class Segment {
 public:
  /// Throws Error(Io).
  static Segment create(size_t bytes);
  /// Maps another process's segment. Throws Error(Comm) where it is gone or not to be opened.
  static Segment open(const SegmentName& name);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) = delete;
  ~Segment();

  const SegmentName& name() const { return name_; }
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool holds(const void* address, size_t bytes) const;

 private:
  Segment(SegmentName name, int fd, size_t bytes);

  SegmentName name_;
  int fd_ = -1;  // kept open by the creator only: it is how others find the memory
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace zero::detail::shm

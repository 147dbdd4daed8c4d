#pragma once
// The shared memory of one rank: blocks of its own, which others may read, and the segments of others that it
// has mapped so far.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/block_map.h"
#include "mesh/shm/segment.h"

namespace zero::detail::shm {

/// Thread safe.
class HostMemory {
 public:
  /// Makes the first segment, which peers map when they connect.
  HostMemory();

  /// 64-byte aligned; from 2 MiB on at a huge page. Never null; throws Error(Io) where the kernel refuses.
  char* allocate(size_t bytes);
  void release(char* block);

  /// How many ranks use a block.
  using Users = std::atomic<int32_t>;
  /// A block of zeros for several ranks and its count of them, which each lowers by one when it lets go. This
  /// rank takes it back some time after it has come to zero.
  std::pair<char*, Users*> lend(size_t bytes, int users);

  const SegmentName& first_segment() const { return own_.front().segment.name(); }

  /// Where these bytes are if they lie in shared memory, own or mapped.
  std::optional<Location> locate(const void* address, size_t bytes) const;

  /// The address of somebody's bytes in this process, mapping the segment if need be. Throws Error(Comm)
  /// where it is gone, or does not hold these bytes.
  char* resolve(const Location& location, size_t bytes);

 private:
  struct Own {
    Segment segment;
    BlockMap blocks;
    size_t fresh_from = 0;  // the kernel's zeros begin here
  };
  struct Lent {
    char* block;
    Users* users;
  };
  void add_segment(size_t bytes);
  char* take(size_t bytes, bool zero = false);
  static char* hand_out(Own& own, size_t offset, size_t bytes, bool zero);
  void give(char* block);
  int64_t bytes_of(const char* block) const;
  void take_back();

  mutable std::mutex mutex_;
  std::deque<Own> own_;
  std::vector<Lent> lent_;
  std::map<SegmentName, Segment> mapped_;
};

}  // namespace zero::detail::shm

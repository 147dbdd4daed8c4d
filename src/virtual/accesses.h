#pragma once
// Who has read and written a block of memory: as much of it as can still conflict with what comes.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "virtual/clock.h"
#include "virtual/region.h"

namespace zero::virtual_device {

struct Access {
  Region region;
  Stamp at;
  bool is_write = false;
  uint64_t owner = 0;  // which taking of the memory it belongs to
};

/// Not thread safe.
class AccessHistory {
 public:
  /// Adds `access`, whose work has seen `seen`, and calls `conflict(const Access& earlier)` for each earlier
  /// access of the same bytes that it has not seen, where one of the two writes. Each conflict is told once.
  template <class Conflict>
  void add(const Access& access, const VectorClock& seen, Conflict&& conflict) {
    for (size_t i = 0; i < accesses_.size();) {
      const Access& earlier = accesses_[i];
      const bool is_seen = seen.has_seen(earlier.at);
      const bool is_conflict =
          !is_seen && (access.is_write || earlier.is_write) && earlier.region.overlaps(access.region);
      if (is_conflict) conflict(earlier);
      // Whatever conflicts with the earlier one conflicts with the new one too.
      const bool is_implied =
          is_seen && (access.is_write || (!earlier.is_write && earlier.at.clock == access.at.clock)) &&
          access.region.covers(earlier.region);
      if (is_implied || is_conflict) {
        accesses_[i] = std::move(accesses_.back());
        accesses_.pop_back();
      } else {
        ++i;
      }
    }
    accesses_.push_back(access);
  }

  /// Adds without looking for conflicts.
  void push(const Access& access) { accesses_.push_back(access); }

  /// Drops the accesses that lie in `seen`.
  void forget_seen(const VectorClock& seen) {
    std::erase_if(accesses_, [&](const Access& access) { return seen.has_seen(access.at); });
  }
  void clear() { accesses_.clear(); }

  /// Splits at an offset: this history keeps what lies before, the result has what lies behind.
  AccessHistory cut(size_t offset) {
    AccessHistory behind;
    std::vector<Access> before;
    for (Access& access : accesses_) {
      const Region rest = access.region.part(offset, SIZE_MAX), first = access.region.part(0, offset);
      if (!rest.empty()) behind.accesses_.push_back({rest, access.at, access.is_write, access.owner});
      if (!first.empty()) before.push_back({first, access.at, access.is_write, access.owner});
    }
    accesses_ = std::move(before);
    return behind;
  }

  /// Appends the history of the memory that begins `offset` bytes behind.
  void append(AccessHistory&& behind, size_t offset) {
    for (Access& access : behind.accesses_)
      accesses_.push_back({access.region.shifted(offset), access.at, access.is_write, access.owner});
    behind.accesses_.clear();
  }

  /// The last access, or null.
  const Access* last() const { return accesses_.empty() ? nullptr : &accesses_.back(); }

 private:
  std::vector<Access> accesses_;
};

}  // namespace zero::virtual_device

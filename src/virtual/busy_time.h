#pragma once
// When something is busy: what remains of spans where only covered time counts.

#include <algorithm>
#include <utility>
#include <vector>

#include "virtual/clock.h"

namespace zero::virtual_device {

/// A set of moments, as intervals. Not thread safe.
class BusyTime {
 public:
  void add(Picoseconds begin, Picoseconds end) {
    if (begin >= end) return;
    // Mostly in the order of time, one right after the other.
    if (!intervals_.empty() && begin >= intervals_.back().first && begin <= intervals_.back().second)
      intervals_.back().second = std::max(intervals_.back().second, end);
    else
      intervals_.emplace_back(begin, end);
  }

  Picoseconds total() {
    settle();
    Picoseconds sum = 0;
    for (const auto& [begin, end] : intervals_) sum += end - begin;
    return sum;
  }

  /// Moments of this one that are none of `other`.
  Picoseconds outside(BusyTime& other) {
    settle();
    other.settle();
    Picoseconds sum = 0;
    size_t first = 0;
    for (const auto& [begin, end] : intervals_) {
      while (first < other.intervals_.size() && other.intervals_[first].second <= begin) ++first;
      Picoseconds at = begin;
      for (size_t i = first; i < other.intervals_.size() && other.intervals_[i].first < end; ++i) {
        sum += std::max<Picoseconds>(0, other.intervals_[i].first - at);
        at = std::max(at, other.intervals_[i].second);
      }
      sum += std::max<Picoseconds>(0, end - at);
    }
    return sum;
  }

  void clear() { intervals_.clear(); }

 private:
  void settle() {
    std::sort(intervals_.begin(), intervals_.end());
    std::vector<std::pair<Picoseconds, Picoseconds>> apart;
    for (const auto& [begin, end] : intervals_) {
      if (!apart.empty() && begin <= apart.back().second)
        apart.back().second = std::max(apart.back().second, end);
      else
        apart.emplace_back(begin, end);
    }
    intervals_ = std::move(apart);
  }

  std::vector<std::pair<Picoseconds, Picoseconds>> intervals_;
};

}  // namespace zero::virtual_device

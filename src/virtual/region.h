#pragma once
// Bytes of a block that a tensor touches, and sets of bytes. Offsets are from the block's beginning.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zero::virtual_device {

/// [begin, end), and where a strided tensor leaves gaps between them, which.
class Region {
 public:
  Region() = default;
  Region(size_t begin, size_t end) : begin_(begin), end_(end) {}
  /// Elements of `itemsize` bytes, the first `offset` elements into the block; strides in elements, 0 or
  /// more.
  Region(const int64_t* sizes, const int64_t* strides, size_t dims, int64_t offset, size_t itemsize);

  size_t begin() const { return begin_; }
  size_t end() const { return end_; }
  bool empty() const { return begin_ >= end_; }
  bool has_gaps() const { return gaps_ != nullptr; }

  /// Exact up to kMostRuns runs of a region with gaps; beyond them such a region counts as one without.
  bool overlaps(const Region& other) const;
  /// Every byte of `other` is one of this region's; false where only a closer look would tell.
  bool covers(const Region& other) const;

  /// The same bytes seen from a block that begins `bytes` earlier.
  Region shifted(size_t bytes) const;
  /// What lies in [begin, end), without gaps, from `begin` on.
  Region part(size_t begin, size_t end) const;

  /// [begin, end) of each piece without gaps, in ascending order where strides are.
  std::vector<std::pair<size_t, size_t>> runs() const;

 private:
  struct Gaps {
    struct Dim {
      size_t count, stride_bytes;
    };
    std::vector<Dim> dims;
    size_t run_bytes;
    bool operator==(const Gaps& other) const;
  };
  static constexpr size_t kMostRuns = 4096;

  size_t begin_ = 0, end_ = 0;
  std::shared_ptr<const Gaps> gaps_;
};

/// A set of bytes, as ascending intervals that do not touch.
class ByteSet {
 public:
  void add(const Region& region);
  bool contains(const Region& region) const;
  void clear() { intervals_.clear(); }
  /// Removes what lies from `begin` on.
  void cut(size_t begin);

 private:
  void add(size_t begin, size_t end);
  bool contains(size_t begin, size_t end) const;
  std::vector<std::pair<size_t, size_t>> intervals_;
};

}  // namespace zero::virtual_device

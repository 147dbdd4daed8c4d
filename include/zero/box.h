#pragma once
// Boxes: what a rank holds of a global tensor, and ranges of their elements. Plain arithmetic: no tensors
// library.
//
// Sizes and offsets count elements; "row-major" is the order in which a contiguous tensor of that shape lies
// in memory. What counts elements expects boxes inside a tensor of at most 2^62.

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zero {

/// Elements [begin, begin + size) of a tensor in every dim. Without dims: a scalar's only element.
struct Box {
  std::vector<int64_t> begin, size;

  /// All of a tensor.
  static Box whole(std::span<const int64_t> shape);
  int64_t numel() const;
  /// Whether it is a box of a tensor of that shape: as many dims, nothing negative, nothing beyond its end.
  /// Of any numbers.
  bool is_inside(std::span<const int64_t> shape) const;
  /// Whether every element of `other` is one of it. Of boxes of one tensor.
  bool contains(const Box& other) const;

  bool operator==(const Box&) const = default;
  /// By `begin`, then by `size`.
  auto operator<=>(const Box&) const = default;
};

/// What two boxes of one tensor have in common; nothing where that is no element.
std::optional<Box> intersect(const Box& a, const Box& b);

/// "[0:3,2:4]": from the first element to the one behind the last, in every dim.
std::string to_string(const Box& box);

/// Elements [begin, begin + numel) of a box in row-major order of the box.
struct BoxRange {
  Box box;
  int64_t begin = 0, numel = 0;

  /// All elements of a box, of a tensor; some of a flattened tensor.
  static BoxRange all_of(Box box);
  static BoxRange whole(std::span<const int64_t> shape) { return all_of(Box::whole(shape)); }
  static BoxRange flat(std::span<const int64_t> shape, int64_t begin, int64_t numel) {
    return {Box::whole(shape), begin, numel};
  }

  int64_t end() const { return begin + numel; }
  /// Whether its box is inside a tensor of that shape, and the range inside the box. Of any numbers.
  bool is_inside(std::span<const int64_t> shape) const;
  /// Elements [from, from + count) of it.
  BoxRange part(int64_t from, int64_t count) const { return {box, begin + from, count}; }

  bool operator==(const BoxRange&) const = default;
};

/// Elements that lie one after the other in both of two ranges.
struct CommonRun {
  int64_t from_a = 0, from_b = 0;  // of the first element, counted from the beginning of each range
  int64_t numel = 0;
};

/// What two ranges of boxes of one tensor have in common, run by run; both offsets ascend. Time and memory
/// do not depend on the elements that they do not share.
class CommonRuns {
 public:
  CommonRuns(const BoxRange& a, const BoxRange& b);
  /// The next run; nothing behind the last.
  std::optional<CommonRun> next();
  /// Elements that are left.
  int64_t numel() const { return end_ - next_; }
  /// The place behind the last of all of them in `a`, counted as from_a; 0 where there are none.
  int64_t end_a() const;

 private:
  CommonRun at(int64_t element) const;

  struct Dim {
    int64_t size;              // of what both boxes have in common
    int64_t offset_a, size_a;  // where that begins in each box, and the box' size
    int64_t offset_b, size_b;
  };
  std::vector<Dim> dims_;
  int64_t begin_a_, begin_b_;
  int64_t run_numel_ = 1;  // of the common box, contiguous in both
  int64_t next_ = 0, end_ = 0;
};

}  // namespace zero

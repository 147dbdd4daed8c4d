#pragma once
// What a virtual machine did, when: spans of simulated time, as events of the Chrome trace format
// (zero::trace_document() makes a file of them).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "virtual/clock.h"

namespace zero::virtual_device {

/// What a span shows; a row of its own on each stream.
enum class SpanKind { Compute, CopyIn, CopyOut, AllGather, ReduceScatter, Collective };
constexpr int kSpanKinds = 6;

struct Span {
  const char* work;
  SpanKind kind;
  int clock;
  Picoseconds begin, duration;
  double bytes, flops;
};

/// Not thread safe. Spans beyond `most` are counted and not kept.
class Timeline {
 public:
  explicit Timeline(size_t most = size_t{1} << 20) : most_(most) {}

  void add(const Span& span) {
    if (spans_.size() < most_) {
      spans_.push_back(span);
    } else {
      ++dropped_;
    }
  }
  void clear();

  const std::vector<Span>& spans() const { return spans_; }
  size_t dropped() const { return dropped_; }

  /// JSON objects separated by commas: a process a device, numbered from `first_process` and named `owner`
  /// and the device, and a row for each stream and kind of its work. Simulated microseconds.
  std::string events(int first_process, std::string_view owner = "") const;

 private:
  size_t most_;
  std::vector<Span> spans_;
  size_t dropped_ = 0;
};

}  // namespace zero::virtual_device

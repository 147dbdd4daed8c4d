#pragma once
// Order and time of a virtual device. A vector clock says what a stream or a host has seen: an access that
// another has not seen is not ordered before it. Plain arithmetic; the caller serialises.

#include <algorithm>
#include <array>
#include <cstdint>

namespace zero::virtual_device {

constexpr int kMostDevices = 8;
constexpr int kStreamsOfDevice = 8;  // the default stream and those of the pool
constexpr int kHostClocks = 1;       // clock 0 is the host's
constexpr int kClocks = kHostClocks + kMostDevices * kStreamsOfDevice;
constexpr int kHost = 0;

constexpr int clock_of(int device, int stream) { return kHostClocks + device * kStreamsOfDevice + stream; }
constexpr int device_of(int clock) { return (clock - kHostClocks) / kStreamsOfDevice; }
constexpr int stream_of(int clock) { return (clock - kHostClocks) % kStreamsOfDevice; }

/// Simulated time in picoseconds: integers, so that sums do not depend on their order.
using Picoseconds = int64_t;

/// One piece of work: the `epoch`-th of its clock. `work` is the operator's name and outlives everything.
struct Stamp {
  int clock = kHost;
  uint64_t epoch = 0;
  const char* work = "";
};

/// For each clock the last epoch that was seen.
class VectorClock {
 public:
  void join(const VectorClock& other) {
    for (int i = 0; i < kClocks; ++i) seen_[i] = std::max(seen_[i], other.seen_[i]);
  }
  void see(const Stamp& stamp) { seen_[stamp.clock] = std::max(seen_[stamp.clock], stamp.epoch); }
  bool has_seen(const Stamp& stamp) const { return stamp.epoch <= seen_[stamp.clock]; }

 private:
  std::array<uint64_t, kClocks> seen_{};
};

/// What a stream, an event or the host knows at one moment, and when that is.
struct Moment {
  VectorClock seen;
  Picoseconds time = 0;

  /// Happens after `other` from now on.
  void follow(const Moment& other) {
    seen.join(other.seen);
    time = std::max(time, other.time);
  }
};

}  // namespace zero::virtual_device

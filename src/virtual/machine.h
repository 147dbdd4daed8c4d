#pragma once
// A host with virtual devices: what runs on which stream, when, in which order, and on which memory. Kernels
// run when they are launched, copies to and from pinned memory as late as the recorded order allows; so what
// reads a copy's target too early sees old values, as it would on a real device, and is told of it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "virtual/arena.h"
#include "virtual/busy_time.h"
#include "virtual/clock.h"
#include "virtual/description.h"
#include "virtual/fault.h"
#include "virtual/kernel_sample.h"
#include "virtual/timeline.h"

namespace zero::virtual_device {

/// Parts of a device that work at the same time; each does one thing at a time.
enum class Lane { Compute, CopyIn, CopyOut };
constexpr size_t kLanes = 3;

/// What a device has done so far.
struct Work {
  int64_t kernels = 0, copies = 0;
  int64_t host_reads = 0;  // scalars and copies to the host
  double flops = 0, kernel_bytes = 0, copied_bytes = 0;
  std::map<std::string, int64_t> host_waits;
  std::array<Picoseconds, kLanes> busy{};
  std::array<double, kLanes> lane_bytes{};
};

/// A piece of memory that work touches, and how faults name it.
struct Touch {
  Block* block;
  Region region;
  const at::Tensor* tensor;
};

/// The bytes of its storage that a strided tensor touches.
Region region_of(const at::Tensor& tensor);

/// Thread safe: each member takes mutex(), which may be held by the caller already.
class Machine {
 public:
  struct Options {
    int devices;
    int64_t capacity_bytes;
    std::vector<std::string> device_operators;  // globs
    bool checks, throw_on_fault, trace, shapes_only, samples;
    std::vector<std::string> left_out_waits;
  };
  Machine(const DeviceDescription& description, const Options& options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  std::recursive_mutex& mutex() { return mutex_; }
  int device_count() const { return options_.devices; }
  const DeviceDescription& description() const { return description_; }
  bool has_checks() const { return options_.checks; }
  /// Whether kernels compute shapes only; Block::has_values then says of which memory there are values.
  bool has_shapes_only() const { return options_.shapes_only; }
  /// Whether the device has a kernel for a library's operator of which only the CPU's is registered.
  bool has_operator(const std::string& name) const;

  // --- Order and time.

  /// The next work of a stream, after all that the host has seen; carries out the copies it comes after.
  Stamp launch(int clock, const char* work);
  /// The time that it takes on its stream and the device's lane.
  void spend(const Stamp& at, Lane lane, Picoseconds duration, double bytes, double flops);
  /// For work whose length is known only later, a collective: when it may begin on its stream. Takes the
  /// host's time for a launch.
  Picoseconds ready_time(int clock);
  Picoseconds host_time();
  /// Its time: the stream is busy with it until `end`, and a host that computes itself too.
  void finish(const Stamp& at, Picoseconds begin, Picoseconds end, double bytes);
  /// An event: what the stream has been given so far.
  Moment record(int clock);
  /// What the stream is given next comes after `moment`.
  void wait(int clock, const Moment& moment);
  void host_waits(const Moment& moment);
  /// Notes that the calling thread passes a place where the engine waits; whether that wait is to be left
  /// out.
  bool leaves_out_wait(const char* place);
  const std::set<std::string>& wait_places() const { return wait_places_; }
  /// For the report: the program makes the host wait for a device, by that operator or call.
  void note_host_wait(int device, const std::string& operation);
  /// Whether `moment` has come; if so the host has seen it. Asking takes time.
  bool host_asks(const Moment& moment);
  void synchronize(int clock);
  void synchronize_device(int device);
  void synchronize_all();
  /// When all that was issued so far will be done, the host's own time included.
  Picoseconds end_time();

  // --- Memory.

  /// Memory for work of that stream. Throws c10::OutOfMemoryError, with what holds the memory, where the
  /// device has none left even when it is idle.
  Block& take(int clock, size_t bytes, const std::string& purpose);
  /// Also after the machine was retired.
  void free(Block& block);
  void record_stream(Block& block, int clock);
  Block& take_pinned(size_t bytes);
  void free_pinned(Block& block);
  /// The pinned allocation that an address lies in, or null.
  Block* pinned_block(const void* address);
  /// The arena with that name or work address, or null.
  Arena* arena_of_name(const void* name);
  Arena* arena_of_work(const void* address);
  Arena& arena(int device) { return *arenas_.at(device); }
  int64_t blocks_in_use();
  /// Pinned memory may be used by the next copy, whatever copies the host has not seen.
  static void open(const Block& pinned);

  // --- Checks; without them nothing is noted.

  void note(const Touch& touch, bool is_write, const Stamp& at);
  /// Notes a fault where the bytes were not all written.
  void require_written(const Touch& touch, const Stamp& at);
  void note_written(const Touch& touch);
  void note_fault(FaultKind kind, std::string text);
  /// With throw_on_fault, throws Error(Usage) for the first fault since the last call.
  void raise_faults(const char* work);
  FaultLog& faults();
  void clear_faults();

  /// From the handler of SIGSEGV: whether the address is ours; if so the access is noted and its block
  /// opened.
  bool note_host_access(char* address, bool is_write, const char* last_work);

  // --- Copies that wait for their turn.

  /// `run` moves the bytes; it is called when something comes after `at`. Until then the host must leave
  /// those bytes of pinned memory alone: it may read them where the copy only reads them too.
  void queue_copy(const Stamp& at, const Touch& pinned, bool writes_host, std::function<void()> run);

  // --- Figures.

  bool has_samples() const { return options_.samples; }
  void add_sample(KernelSample sample);
  std::vector<KernelSample> take_samples();

  const Work& work(int device) { return work_.at(device); }
  void note_host_read(int device) { ++work_.at(device).host_reads; }
  Timeline& timeline() { return timeline_; }
  /// Of what begin_measure() began.
  struct Overlap {
    Picoseconds communication = 0;  // some collective is under way
    Picoseconds exposed = 0;        // of it, no kernel runs
  };
  Overlap overlap(int device);
  /// Forgets spans of the trace and the overlap so far.
  void begin_measure();

 private:
  struct QueuedCopy {
    Stamp at;
    Block* pinned;
    Region region;
    bool writes_host;
    std::function<void()> run;  // null once it has run, until the host has seen it
  };
  struct Limbo {
    Block* block;
    std::vector<Moment> until;
  };
  struct HostAccess {
    char* address;
    bool is_write;
    const char* last_work;
  };

  bool keeps_overlap() const { return options_.trace || options_.shapes_only; }
  void run_queue(const VectorClock& seen);
  void protect(Block& pinned);
  void give_back(Block& block);
  void drain_limbo(int device);
  Block* try_take(int clock, size_t bytes, const std::string& purpose);
  [[noreturn]] void fail_out_of_memory(const Arena& arena, size_t bytes) const;
  void tell_conflict(const Touch& touch, const Access& earlier, const Access& now);
  std::string text_of(const Touch& touch) const;
  void drain_host_accesses();

  const DeviceDescription description_;
  const Options options_;
  mutable std::recursive_mutex mutex_;
  std::array<Moment, kClocks> state_;
  std::array<uint64_t, kClocks> epoch_{};
  std::vector<std::array<Picoseconds, kLanes>> busy_until_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::vector<Limbo>> limbo_;
  std::vector<Work> work_;
  std::vector<BusyTime> computing_, communicating_;  // of each device, where there is a trace or shapes only
  std::set<std::string> wait_places_;
  std::map<char*, std::unique_ptr<Block>> pinned_;
  std::deque<QueuedCopy> queue_;  // in the order of issue, which is one that the recorded order allows
  FaultLog faults_;
  size_t raised_ = 0;
  std::array<HostAccess, 256> host_accesses_{};
  size_t host_access_count_ = 0;
  uint64_t owners_ = 0;
  int64_t blocks_in_use_ = 0;
  std::vector<KernelSample> samples_;
  Timeline timeline_;
};

}  // namespace zero::virtual_device

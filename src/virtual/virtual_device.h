#pragma once
// Virtual accelerators: devices "virtual:0", "virtual:1", ... of this process that compute with the CPU's
// kernels, bit for bit, in memory that the host cannot touch, in simulated time, and that watch what the
// program does: which real devices would have run it by luck only.
//
//   VirtualDevices devices({.description = read_description("configs/devices/h100-sxm.json")});
//   model->to(devices.device());
//   ... train ...
//   devices.simulated_ns();                          // how long the description's device would have taken
//   for (const Fault& fault : devices.faults()) ...  // none, in a program that is right

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "virtual/description.h"
#include "virtual/fault.h"
#include "virtual/kernel_sample.h"
#include "virtual/purpose.h"

namespace zero::virtual_device {

struct VirtualDeviceOptions {
  int devices = 1;             // 1 to 8
  int64_t capacity_bytes = 0;  // of each device; 0: what the description says
  DeviceDescription description;
  // Globs of libraries' operators that the device has kernels for, though only the CPU's are registered; any
  // other such operator is a fault. Ours have CUDA kernels.
  std::vector<std::string> device_operators = {"zero::*"};
  bool checks = true;           // without them only host accesses and time are watched
  bool throw_on_fault = false;  // the operator that finds a fault throws Error(Usage); else faults() has them
  // Tests of the checks: places (wait_places()) whose waits are left out, as if the program had forgotten
  // them.
  std::vector<std::string> left_out_waits = {};
  bool trace = false;  // keep what trace_events() tells
  // Kernels compute the shapes of their results and no values: their memory is reserved, costs nothing, and
  // time passes as always. Small tensors alone keep values, so that what ranks agree on is right; of what is
  // read of others every element is one (virtual/shapes.h).
  bool shapes_only = false;
  bool samples = false;  // keep what take_samples() tells
};

/// Of one device.
struct DeviceReport {
  int64_t used_bytes = 0, peak_bytes = 0;  // blocks of 512 bytes; temporaries of CPU kernels are "workspace"
  std::map<std::string, int64_t> used_by_purpose, peak_by_purpose;
  int64_t kernels = 0, copies = 0;
  int64_t host_reads = 0;  // scalars and copies to the host
  double flops = 0, kernel_bytes = 0, copied_bytes = 0;
  double copied_in_bytes = 0, copied_out_bytes = 0;  // of them, from the host and to it
  // How often the host has waited, by what made it: an operator that gives a number or a shape to the host, a
  // copy ("copy to host", or "copy to device" of memory that is not pinned), "synchronize event",
  // "synchronize stream", "synchronize device", "out of memory". VirtualDevices' own members are not counted.
  std::map<std::string, int64_t> host_waits;
  double compute_ns = 0, copy_in_ns = 0, copy_out_ns = 0;  // busy
  // Since begin_measure(), with a trace or shapes only: some collective is under way; of that, no kernel
  // runs.
  double communication_ns = 0, exposed_ns = 0;
};

/// Between two of a VirtualDevices' times or sums of times: in whole picoseconds, as its clocks count, so
/// that the same work has the same duration to the last digit whenever it begins.
double passed_ns(double from_ns, double to_ns);

/// One set at a time in a process. Thread safe, but construction and destruction. Device memory needs no
/// VirtualDevices to be freed, all else does. Streams: 8 a device, made by c10's generic interfaces
/// (c10::impl::VirtualGuardImpl, c10::Event, c10::StreamGuard). All threads of the process are one host.
/// Random operators borrow the CPU's default generator: no other thread may draw on the CPU meanwhile. Not
/// supported: packed sequences, sparse tensors, autocast.
class VirtualDevices {
 public:
  /// Throws Usage where there are virtual devices already, Config for options out of bounds, Io where the
  /// system has no addresses for the memory.
  explicit VirtualDevices(const VirtualDeviceOptions& options);
  /// Waits for the devices.
  ~VirtualDevices();
  VirtualDevices(const VirtualDevices&) = delete;
  VirtualDevices& operator=(const VirtualDevices&) = delete;

  c10::Device device(int index = 0) const;

  /// Host and devices have done what they were given.
  void synchronize();
  /// When all that was issued will be done, since construction: the host's launches, kernels and copies.
  /// Depends on the order of issue only.
  double simulated_ns() const;

  /// The first thousand since the last clear_faults(), in the order in which they were found.
  std::vector<Fault> faults() const;
  void clear_faults();

  /// Where the engine has made a stream or the host wait for a transfer so far, by name; and "start of a
  /// collective", which comes after what its stream was given.
  std::vector<std::string> wait_places() const;

  DeviceReport report(int index = 0) const;
  /// How long the host took for each kernel and copy within a device, in the order of launch, since it was
  /// asked last. Empty without options.samples.
  std::vector<KernelSample> take_samples();
  /// Peaks count anew from what is in use.
  void reset_peaks();
  /// The trace, communication_ns and exposed_ns begin anew. Host and devices should be synchronised.
  void begin_measure();

  /// For zero::trace_document(): a process a device, numbered from `first_process` and named `owner` and the
  /// device; a row for each stream and kind of its work; simulated microseconds. Empty without options.trace.
  std::string trace_events(int first_process = 0, std::string_view owner = "") const;
};

}  // namespace zero::virtual_device

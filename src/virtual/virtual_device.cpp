#include "virtual/virtual_device.h"

#include <cmath>
#include <memory>
#include <mutex>

#include "base/glob.h"
#include "virtual/machine.h"
#include "virtual/runtime.h"
#include "zero/error.h"

namespace zero::virtual_device {
namespace {

constexpr double kPicosecondsOfNanosecond = 1e3;
constexpr int64_t kMostCapacityBytes = int64_t{1} << 42;

double nanoseconds_of(Picoseconds time) { return static_cast<double>(time) / kPicosecondsOfNanosecond; }

std::map<std::string, int64_t> bytes_by_purpose(const std::map<std::string, size_t>& bytes) {
  std::map<std::string, int64_t> result;
  for (const auto& [purpose, count] : bytes)
    if (count > 0) result.emplace(purpose, static_cast<int64_t>(count));
  return result;
}

}  // namespace

VirtualDevices::VirtualDevices(const VirtualDeviceOptions& options) {
  const int64_t capacity =
      options.capacity_bytes != 0 ? options.capacity_bytes : options.description.memory_bytes;
  require(options.devices >= 1 && options.devices <= kMostDevices, ErrorKind::Config, "devices",
          std::to_string(options.devices) + " is not from 1 to " + std::to_string(kMostDevices));
  require(capacity > 0 && capacity <= kMostCapacityBytes, ErrorKind::Config, "capacity_bytes",
          std::to_string(capacity) + " is not from 1 to " + std::to_string(kMostCapacityBytes));
  require(options.description.flops_per_s.contains(Dtype::f32), ErrorKind::Config, "description",
          "has no figures", "read one with read_description()");
  for (const std::string& glob : options.device_operators)
    require(is_glob(glob), ErrorKind::Config, "device_operators", "\"" + glob + "\" is no pattern of names");
  install(std::make_unique<Machine>(
      options.description, Machine::Options{options.devices, capacity, options.device_operators,
                                            options.checks, options.throw_on_fault, options.trace,
                                            options.shapes_only, options.samples, options.left_out_waits}));
}

VirtualDevices::~VirtualDevices() { uninstall(); }

c10::Device VirtualDevices::device(int index) const {
  require(index >= 0 && index < machine().device_count(), ErrorKind::Usage, "device",
          "there is no virtual device " + std::to_string(index));
  return device_at(index);
}

void VirtualDevices::synchronize() { machine().synchronize_all(); }

double passed_ns(double from_ns, double to_ns) {
  return std::round((to_ns - from_ns) * kPicosecondsOfNanosecond) / kPicosecondsOfNanosecond;
}

double VirtualDevices::simulated_ns() const { return nanoseconds_of(machine().end_time()); }

std::vector<Fault> VirtualDevices::faults() const { return machine().faults().faults(); }

void VirtualDevices::clear_faults() { machine().clear_faults(); }

std::vector<std::string> VirtualDevices::wait_places() const {
  Machine& owner = machine();
  const std::lock_guard lock(owner.mutex());
  return {owner.wait_places().begin(), owner.wait_places().end()};
}

DeviceReport VirtualDevices::report(int index) const {
  Machine& owner = machine();
  const std::lock_guard lock(owner.mutex());
  const Arena& arena = owner.arena(device(index).index());
  const Work& work = owner.work(index);
  DeviceReport report;
  report.used_bytes = static_cast<int64_t>(arena.used_bytes());
  report.peak_bytes = static_cast<int64_t>(arena.peak_bytes());
  report.used_by_purpose = bytes_by_purpose(arena.used_by_purpose());
  report.peak_by_purpose = bytes_by_purpose(arena.peak_by_purpose());
  report.host_waits = work.host_waits;
  report.kernels = work.kernels;
  report.copies = work.copies;
  report.host_reads = work.host_reads;
  report.flops = work.flops;
  report.kernel_bytes = work.kernel_bytes;
  report.copied_bytes = work.copied_bytes;
  report.copied_in_bytes = work.lane_bytes[static_cast<size_t>(Lane::CopyIn)];
  report.copied_out_bytes = work.lane_bytes[static_cast<size_t>(Lane::CopyOut)];
  report.compute_ns = nanoseconds_of(work.busy[static_cast<size_t>(Lane::Compute)]);
  report.copy_in_ns = nanoseconds_of(work.busy[static_cast<size_t>(Lane::CopyIn)]);
  report.copy_out_ns = nanoseconds_of(work.busy[static_cast<size_t>(Lane::CopyOut)]);
  const Machine::Overlap overlap = owner.overlap(device(index).index());
  report.communication_ns = nanoseconds_of(overlap.communication);
  report.exposed_ns = nanoseconds_of(overlap.exposed);
  return report;
}

void VirtualDevices::begin_measure() { machine().begin_measure(); }

std::vector<KernelSample> VirtualDevices::take_samples() { return machine().take_samples(); }

void VirtualDevices::reset_peaks() {
  Machine& owner = machine();
  const std::lock_guard lock(owner.mutex());
  for (int device = 0; device < owner.device_count(); ++device) owner.arena(device).reset_peak();
}

std::string VirtualDevices::trace_events(int first_process, std::string_view owner_name) const {
  Machine& owner = machine();
  const std::lock_guard lock(owner.mutex());
  return owner.timeline().events(first_process, owner_name);
}

}  // namespace zero::virtual_device

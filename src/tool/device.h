#pragma once
// The device that a verb's ranks compute on: the configuration's, or a virtual one in each rank's process.

#include <memory>
#include <string>
#include <vector>

#include "virtual/virtual_device.h"
#include "zero/mesh.h"
#include "zero/train.h"

namespace zero::tool {

/// The end of a help text of --device.
extern const std::string kDeviceHelp;

/// One of a process, made in the process that starts ranks (where it only checks) and in each rank. It
/// outlives the mesh, the engine and every tensor of the device.
class ToolDevice {
 public:
  /// `option`: "auto", "cuda", "virtual" (an H100) or "virtual:FILE", FILE a description
  /// (virtual/description.h). Reads the description; makes nothing. Throws Config for another text, Io and
  /// Corrupt as read_description(), Unsupported for "cuda" without a device.
  explicit ToolDevice(const std::string& option);
  ~ToolDevice();
  ToolDevice(const ToolDevice&) = delete;
  ToolDevice& operator=(const ToolDevice&) = delete;

  bool is_virtual() const { return description_ != nullptr; }
  const virtual_device::DeviceDescription& description() const { return *description_; }

  /// In a rank, before its mesh: makes the virtual device and lets the mesh's options name it, with
  /// collectives of its own. Nothing for "auto". `trace`: keep what trace_events() tells.
  void open(MeshOptions& options, bool trace);
  /// The device that open() made.
  virtual_device::VirtualDevices& devices() { return *devices_; }

  /// What the device did since it was asked last, and the peaks since then. Waits for it.
  DeviceFigures figures();
  /// For write_trace(): the device's rows. "" where there are none.
  std::string trace_events(const Mesh& mesh) const;
  /// Prints what the device found wrong on standard error; true where it found nothing. Waits for it.
  bool is_sound(const Mesh& mesh);

 private:
  bool is_cuda_ = false;
  std::unique_ptr<virtual_device::DeviceDescription> description_;
  std::unique_ptr<virtual_device::VirtualDevices> devices_;
  double told_ns_ = 0, told_in_bytes_ = 0, told_out_bytes_ = 0;
};

}  // namespace zero::tool

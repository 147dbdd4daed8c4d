#include "device.h"

#include <algorithm>
#include <iostream>
#include <string_view>

#include "compute/cuda_library.h"
#include "compute/cuda_memory.h"
#include "virtual/transport.h"
#include "zero/error.h"

namespace zero::tool {

extern const char* const kDefaultDevice;  // the text of configs/devices/h100-sxm.json

namespace {

constexpr std::string_view kVirtual = "virtual";
constexpr size_t kMostFaultsShown = 10;

virtual_device::DeviceDescription description_of(const std::string& option) {
  if (option == kVirtual)
    return virtual_device::description_from_text(kDefaultDevice, "the default virtual device");
  return virtual_device::read_description(option.substr(kVirtual.size() + 1));
}

}  // namespace

const std::string kDeviceHelp =
    "auto, cuda, or virtual[:FILE]: simulated, as the description FILE says [an H100], with the CPU's "
    "results";

ToolDevice::ToolDevice(const std::string& option) {
  if (option == "auto") return;
  is_cuda_ = option == "cuda";
  if (is_cuda_) {
    detail::require_cuda("--device cuda");
    return;
  }
  require(option == kVirtual || option.starts_with(std::string(kVirtual) + ":"), ErrorKind::Config,
          "--device", "expected auto, cuda, virtual or virtual:FILE, got \"" + option + "\"",
          "configs/devices/ has descriptions");
  description_ = std::make_unique<virtual_device::DeviceDescription>(description_of(option));
}

ToolDevice::~ToolDevice() = default;

void ToolDevice::open(MeshOptions& options, bool trace) {
  if (is_cuda_) {
    if (const auto settings = detail::allocator_settings(true)) detail::use_allocator_settings(*settings);
    options.device = c10::DeviceType::CUDA;
  }
  if (!is_virtual()) return;
  virtual_device::VirtualDeviceOptions virtual_options;
  virtual_options.description = *description_;
  virtual_options.trace = trace;
  devices_ = std::make_unique<virtual_device::VirtualDevices>(virtual_options);
  options.device = devices_->device();
  options.own_transport = virtual_device::make_virtual_transport;
}

DeviceFigures ToolDevice::figures() {
  constexpr double kNanosecondsOfMillisecond = 1e6;
  devices_->synchronize();
  const virtual_device::DeviceReport report = devices_->report();
  const double now_ns = devices_->simulated_ns();
  DeviceFigures figures;
  figures.simulated_ms = virtual_device::passed_ns(told_ns_, now_ns) / kNanosecondsOfMillisecond;
  figures.bytes_by_purpose = report.used_by_purpose;
  figures.peak_bytes = report.peak_bytes;
  figures.peak_bytes_by_purpose = report.peak_by_purpose;
  figures.copied_in_bytes = report.copied_in_bytes - told_in_bytes_;
  figures.copied_out_bytes = report.copied_out_bytes - told_out_bytes_;
  told_ns_ = now_ns;
  told_in_bytes_ = report.copied_in_bytes;
  told_out_bytes_ = report.copied_out_bytes;
  devices_->reset_peaks();
  return figures;
}

// Behind the ranks' own rows.
std::string ToolDevice::trace_events(const Mesh& mesh) const {
  return devices_ ? devices_->trace_events(mesh.size() + mesh.rank(),
                                           "rank " + std::to_string(mesh.rank()) + " simulated, ")
                  : "";
}

bool ToolDevice::is_sound(const Mesh& mesh) {
  if (!devices_) return true;
  devices_->synchronize();
  const std::vector<virtual_device::Fault> faults = devices_->faults();
  if (faults.empty()) return true;
  std::string text;
  for (size_t i = 0; i < std::min(faults.size(), kMostFaultsShown); ++i)
    text += "zero: rank " + std::to_string(mesh.rank()) + ": " +
            std::string(virtual_device::to_string(faults[i].kind)) + ": " + faults[i].text + "\n";
  text += "zero: rank " + std::to_string(mesh.rank()) + ": the virtual device found " +
          std::to_string(faults.size()) + (faults.size() == 1 ? " fault\n" : " faults\n");
  std::cerr << text << std::flush;
  return false;
}

}  // namespace zero::tool

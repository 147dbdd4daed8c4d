// Devices, streams and events of virtual devices, as c10's generic interfaces want them.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "compute/wait_place.h"
#include "virtual/runtime.h"

namespace zero::virtual_device {
namespace {

c10::Stream stream_at(int device, int stream) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device), static_cast<c10::StreamId>(stream));
}

Moment& moment_of(void* event) { return *static_cast<Moment*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kVirtual; }

  c10::Device getDevice() const override { return device_at(this_thread().device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    if (!device.has_index()) return;
    TORCH_CHECK(device.index() >= 0 && device.index() < machine().device_count(), "no such device: ", device,
                "; there are ", machine().device_count(), " virtual devices");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) this_thread().device = device.index();
  }
  // The most that there can be: autograd starts a thread for each at the first backward of the process, and
  // devices may be made later.
  c10::DeviceIndex deviceCount() const noexcept override { return kMostDevices; }

  c10::Stream getStream(c10::Device device) const override {
    const int index = index_of(device);
    return stream_at(index, this_thread().streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_at(index_of(device), 0); }
  // Streams of a pool, in turn.
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    static std::array<std::atomic<uint32_t>, kMostDevices> made{};
    const int index = index_of(device);
    const uint32_t number = made[index]++;
    return stream_at(index, 1 + static_cast<int>(number % (kStreamsOfDevice - 1)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*is_high_priority*/) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    this_thread().streams[stream.device_index()] = static_cast<int>(stream.id());
    return before;
  }
  // The stream's clock: what is outside c10's interfaces is told of a stream by this.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(clock_of(stream)));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return machine().host_asks(machine().record(clock_of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    machine().note_host_wait(stream.device_index(), "synchronize stream");
    machine().synchronize(clock_of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const int index = device < 0 ? this_thread().device : device;
    machine().note_host_wait(index, "synchronize device");
    machine().synchronize_device(index);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Moment;
    moment_of(*event) = machine().record(clock_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr || machine().leaves_out_wait(detail::wait_place())) return;
    machine().wait(clock_of(stream), moment_of(event));
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr || machine().leaves_out_wait(detail::wait_place())) return true;
    return machine().host_asks(moment_of(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    machine().note_host_wait(this_thread().device, "synchronize event");
    machine().host_waits(moment_of(event));
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex /*device*/) const override {
    constexpr double kPicosecondsOfMillisecond = 1e9;
    return static_cast<double>(moment_of(second).time - moment_of(first).time) / kPicosecondsOfMillisecond;
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Moment*>(event);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() == nullptr) return;
    Machine& owner = machine();
    const std::lock_guard lock(owner.mutex());
    if (Arena* arena = owner.arena_of_name(data.get()))
      owner.record_stream(arena->block_at(data.get()), clock_of(stream));
  }
};

// At the program's start, because autograd counts devices at the first backward.
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace zero::virtual_device

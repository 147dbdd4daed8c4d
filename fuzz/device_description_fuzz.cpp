// The description of a device to simulate: what is accepted gives every piece of work a finite time.
#include "fuzz.h"
#include "virtual/description.h"

namespace {

void read_description(std::string_view text) {
  using namespace zero;
  fuzz::attempt([&] {
    const virtual_device::DeviceDescription device = virtual_device::description_from_text(text, "fuzz");
    fuzz::check(device.memory_bytes > 0);
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::i64})
      fuzz::check(device.kernel_time(1e12, dtype, 1e12) >= 0);
    for (const auto* link : {&device.host_to_device, &device.between_hosts})
      fuzz::check(link->time_of(1e12) >= 0);
  });
}

}  // namespace

ZERO_FUZZ(read_description)

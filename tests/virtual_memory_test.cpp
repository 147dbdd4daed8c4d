// Memory of virtual devices: capacity, purposes, reuse, pinned memory, storages that give their memory back.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <optional>

#include "compute/zeros.h"
#include "seam/storage_access.h"
#include "support/virtual_machine.h"
#include "virtual/region.h"

namespace zero::virtual_device::testing {
namespace {

using torch::Tensor;

class VirtualMemory : public OnVirtualDevices {};

std::string out_of_memory_text(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::OutOfMemoryError& error) {
    return error.what_without_backtrace();
  }
  return "not out of memory";
}

TEST_F(VirtualMemory, OverCapacityTellsWhatHoldsIt) {
  std::optional<PurposeScope> scope(std::in_place, "parameters");
  const Tensor parameters = at::ones({16 << 20}, on(device));
  scope.reset();
  scope.emplace("activations");
  const Tensor activations = at::ones({32 << 20}, on(device));
  scope.reset();
  const std::string text = out_of_memory_text([&] { at::empty({32 << 20}, on(device)); });
  for (const char* part :
       {"virtual:0 is out of memory: 134217728 bytes asked", "201326592 of 268435456 in use",
        "activations 134217728 bytes, parameters 67108864 bytes"})
    EXPECT_NE(text.find(part), std::string::npos) << "no " << part << " in " << text;
  EXPECT_NE(out_of_memory_text([&] { const Tensor sum = activations + 1; }).find("out of memory"),
            std::string::npos);
  EXPECT_EQ(parameters.sum().item<float>(), 16 << 20) << "the device is usable afterwards";
}

TEST_F(VirtualMemory, PurposesFollowABackward) {
  const Tensor weight = at::ones({1024}, on(device)).requires_grad_();
  const Tensor loss = (weight * 2).sum();
  {
    const PurposeScope gradients("gradients");
    loss.backward();
  }
  EXPECT_EQ(devices.report().used_by_purpose["gradients"], 4096);
  EXPECT_GE(devices.report().peak_bytes, devices.report().used_bytes);
}

TEST_F(VirtualMemory, FreedMemoryIsReusedOnItsStream) {
  Tensor first = at::ones({1 << 16}, on(device));
  const void* address = first.data_ptr();
  first = Tensor();
  const Tensor second = at::ones({1 << 16}, on(device));
  EXPECT_EQ(second.data_ptr(), address);
  const c10::StreamGuard on_side(side);
  const Tensor third = at::ones({1 << 16}, on(device));
  EXPECT_NE(third.data_ptr(), address);
}

TEST_F(VirtualMemory, RecordedMemoryWaitsForTheOtherStream) {
  Tensor used = at::ones({1 << 16}, on(device));
  const void* address = used.data_ptr();
  order(main, side);
  {
    const c10::StreamGuard on_side(side);
    for (int i = 0; i < 50; ++i) used.mul(2);
  }
  used.record_stream(side);
  used = Tensor();
  EXPECT_NE(at::ones({1 << 16}, on(device)).data_ptr(), address);
  guard.synchronizeStream(side);
  EXPECT_EQ(at::ones({1 << 16}, on(device)).data_ptr(), address);
}

TEST_F(VirtualMemory, StoragesGiveMemoryBackAndTakeItAgain) {
  const Tensor tensor = at::ones({1 << 16}, on(device));
  const int64_t before = devices.report().used_bytes;
  detail::release_memory(tensor);
  EXPECT_EQ(before - devices.report().used_bytes, 4 << 16);
  detail::obtain_memory(tensor);
  EXPECT_EQ(tensor.zero_().sum().item<float>(), 0);
}

TEST_F(VirtualMemory, PinnedMemory) {
  EXPECT_TRUE(at::zeros({1024}).pin_memory().is_pinned());
  EXPECT_TRUE(at::empty({8}, torch::TensorOptions().pinned_memory(true)).is_pinned());
  EXPECT_FALSE(at::zeros({8}).is_pinned());
}

TEST(VirtualDevicesLife, TensorsMayOutliveThem) {
  Tensor tensor;
  {
    VirtualDevices devices(plain_options());
    tensor = at::ones({16}, torch::TensorOptions(devices.device()));
  }
  VirtualDevices devices(plain_options());
  EXPECT_THROW(tensor + 1, c10::Error);
  tensor = Tensor();
  EXPECT_EQ(at::ones({16}, torch::TensorOptions(devices.device())).sum().item<float>(), 16);
}

TEST(VirtualRegion, OverlapIsExactWithGaps) {
  const int64_t sizes[] = {4, 2}, strides[] = {4, 1};
  const Region left(sizes, strides, 2, 0, 4), right(sizes, strides, 2, 2, 4), whole(0, 64),
      shifted(sizes, strides, 2, 1, 4);
  EXPECT_TRUE(left.has_gaps());
  EXPECT_FALSE(left.overlaps(right));
  EXPECT_TRUE(left.overlaps(shifted));
  EXPECT_TRUE(whole.overlaps(right));
  EXPECT_TRUE(whole.covers(right));
  EXPECT_FALSE(left.covers(right));
  ByteSet bytes;
  bytes.add(left);
  EXPECT_TRUE(bytes.contains(left));
  EXPECT_FALSE(bytes.contains(whole));
  bytes.add(right);
  EXPECT_TRUE(bytes.contains(whole));
  bytes.cut(8);
  EXPECT_FALSE(bytes.contains(left));
  EXPECT_TRUE(bytes.contains(Region(0, 8)));
}

}  // namespace
}  // namespace zero::virtual_device::testing

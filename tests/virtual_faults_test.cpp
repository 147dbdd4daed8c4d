// Programs that are wrong, one fault each: every one is told by name, and its right twin is not.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cstring>
#include <thread>

#include "support/expect_error_texts.h"
#include "support/virtual_machine.h"

namespace zero::virtual_device::testing {
namespace {

using torch::Tensor;

class VirtualFaults : public OnVirtualDevices {
 protected:
  /// On the side stream, which waits for the main one first where `waits`.
  template <class Work>
  void on_side(bool waits, Work&& work) {
    if (waits) order(main, side);
    const c10::StreamGuard on(side);
    work();
  }
};

TEST_F(VirtualFaults, DroppedWait) {
  for (const bool waits : {true, false}) {
    const Tensor t = at::ones({64}, on(device));
    on_side(waits, [&] { t.add_(1); });
    if (waits) {
      EXPECT_EQ(fault_texts(), std::vector<std::string>{});
    }
    guard.synchronizeDevice(device.index());
  }
  expect_faults(FaultKind::UnorderedAccess,
                {"aten::add_ writes on stream", "Float[64]", "aten::fill_", "record an event"});
}

TEST_F(VirtualFaults, PrefetchUsedBeforeItsEvent) {
  const Tensor pinned = at::ones({1024}).pin_memory();
  for (const bool waits : {true, false}) {
    const Tensor t = at::zeros({1024}, on(device));
    on_side(true, [&] { t.copy_(pinned, /*non_blocking=*/true); });
    if (waits) order(side, main);
    const Tensor twice = t * 2;
    EXPECT_EQ(twice[3].item<float>(), waits ? 2 : 0) << "too early means old values, as on a real device";
    if (waits) {
      EXPECT_EQ(fault_texts(), std::vector<std::string>{});
    }
    guard.synchronizeDevice(device.index());
  }
  expect_faults(FaultKind::UnorderedAccess, {"aten::mul reads", "copy to device"});
}

TEST_F(VirtualFaults, ReuseWithoutRecordStream) {
  for (const bool records : {true, false}) {
    Tensor t = at::ones({1 << 16}, on(device)), r;
    on_side(true, [&] { r = t * 2; });
    if (records) t.record_stream(side);
    t = Tensor();
    const Tensor u = at::zeros({1 << 16}, on(device));
    if (records) {
      EXPECT_EQ(fault_texts(), std::vector<std::string>{});
    }
    guard.synchronizeDevice(device.index());
  }
  expect_faults(FaultKind::EarlyReuse, {"aten::zero_ writes", "aten::mul", "record_stream()"});
}

TEST_F(VirtualFaults, UseAfterFree) {
  Tensor t = at::ones({64}, on(device));
  const Tensor alias = at::from_blob(t.data_ptr(), {64}, on(device));
  EXPECT_EQ(alias[1].item<float>(), 1);
  t = Tensor();
  const Tensor sum = alias.sum();
  expect_faults(FaultKind::UseAfterFree, {"aten::sum", "Float[64]", "which was freed"});
}

TEST_F(VirtualFaults, UninitialisedRead) {
  const Tensor t = at::empty({64}, on(device));
  t.narrow(0, 0, 32).fill_(1);
  const Tensor fine = t.narrow(0, 0, 32) + 1;
  EXPECT_EQ(fault_texts(), std::vector<std::string>{});
  const Tensor sum = t + 1;
  expect_faults(FaultKind::UninitialisedRead, {"aten::add reads", "Float[64]", "never written"});
}

TEST_F(VirtualFaults, UninitialisedUnderAStridedWrite) {
  const Tensor t = at::empty({8, 8}, on(device));
  t.narrow(1, 0, 4).fill_(1);
  const Tensor fine = t.narrow(1, 0, 4) + 1;
  EXPECT_EQ(fault_texts(), std::vector<std::string>{});
  const Tensor right = t.narrow(1, 4, 4) + 1;
  expect_faults(FaultKind::UninitialisedRead, {"aten::add"});
}

TEST_F(VirtualFaults, HostRead) {
  const Tensor t = at::ones({1024}, on(device));
  const float value = *static_cast<volatile float*>(t.data_ptr<float>());
  EXPECT_EQ(value, 1) << "the program goes on with the value";
  expect_faults(FaultKind::HostRead, {"host code reads", "virtual:0", "last used by aten::fill_"});
}

TEST_F(VirtualFaults, HostWrite) {
  const Tensor t = at::ones({1024}, on(device));
  std::memset(t.data_ptr<float>(), 0, 8);
  expect_faults(FaultKind::HostWrite, {"host code writes"});
}

TEST_F(VirtualFaults, AHostWriteOfManyPagesIsOneFault) {
  const Tensor t = at::ones({4 << 20}, on(device)), other = at::ones({4}, on(device));
  std::memset(t.data_ptr(), 0, t.nbytes());
  EXPECT_EQ(devices.faults().size(), 1);
  std::memset(t.data_ptr(), 0, t.nbytes());
  EXPECT_EQ(devices.faults().size(), 2) << "it was closed again";
  EXPECT_EQ(t.sum().item<float>(), 0);
  expect_faults(FaultKind::HostWrite, {"host code writes"});
}

TEST_F(VirtualFaults, HostReadOnAnotherThread) {
  const Tensor t = at::ones({1024}, on(device));
  std::thread([&] { EXPECT_EQ(static_cast<volatile float*>(t.data_ptr<float>())[5], 1); }).join();
  expect_faults(FaultKind::HostRead, {"host code reads"});
  EXPECT_EQ(static_cast<volatile float*>(t.data_ptr<float>())[5], 1);
  expect_faults(FaultKind::HostRead, {"host code reads"});  // the page was closed again
}

TEST_F(VirtualFaults, EarlyReadOfACopyToPinnedMemory) {
  const Tensor t = at::ones({1024}, on(device)), pinned = at::zeros({1024}).pin_memory();
  for (const bool waits : {true, false}) {
    pinned.zero_();
    pinned.copy_(t, /*non_blocking=*/true);
    if (waits) guard.synchronizeStream(main);
    EXPECT_EQ(*static_cast<volatile float*>(pinned.data_ptr<float>()), waits ? 1 : 0);
    if (waits) {
      EXPECT_EQ(fault_texts(), std::vector<std::string>{});
    }
    guard.synchronizeStream(main);
  }
  expect_faults(FaultKind::PinnedRead, {"host code reads pinned memory", "wait for the queued copy"});
}

TEST_F(VirtualFaults, EarlyWriteUnderACopyFromPinnedMemory) {
  const Tensor t = at::zeros({1024}, on(device)), pinned = at::ones({1024}).pin_memory();
  t.copy_(pinned, /*non_blocking=*/true);
  pinned.fill_(9);  // a CPU operator of the program, not of the device
  guard.synchronizeStream(main);
  expect_faults(FaultKind::PinnedWrite, {"host code writes pinned memory"});
  EXPECT_EQ(t[5].item<float>(), 9) << "the copy takes what is there when it runs";
}

TEST_F(VirtualFaults, UnpinnedCopyAskedForAsAsynchronous) {
  const Tensor t = at::zeros({1024}, on(device)), host = at::ones({1024});
  t.copy_(host);
  EXPECT_EQ(fault_texts(), std::vector<std::string>{});
  t.copy_(host, /*non_blocking=*/true);
  expect_faults(FaultKind::UnpinnedCopy, {"4096 bytes", "pin_memory()"});
}

TEST_F(VirtualFaults, GradientReadOnAnotherStream) {
  for (const bool waits : {true, false}) {
    const Tensor w = at::ones({64}, on(device)).requires_grad_();
    (w * 3).sum().backward();
    on_side(waits, [&] { const Tensor u = w.grad() * 2; });
    if (waits) {
      EXPECT_EQ(fault_texts(), std::vector<std::string>{});
    }
    guard.synchronizeDevice(device.index());
  }
  expect_faults(FaultKind::UnorderedAccess, {"aten::mul reads"});
}

TEST_F(VirtualFaults, FreshMemoryOnAnotherStream) {
  const Tensor before = at::ones({64}, on(device)), t = at::empty({64}, on(device));
  on_side(false, [&] { t.fill_(1); });
  expect_faults(FaultKind::UnorderedAccess, {"aten::fill_ writes", "its allocation"});
}

TEST_F(VirtualFaults, TwoCopiesThroughOnePinnedBuffer) {
  const Tensor a = at::ones({1024}, on(device)), pinned = at::zeros({1024}).pin_memory(),
               b = at::zeros({1024}, on(device));
  guard.synchronizeStream(main);
  pinned.copy_(a, /*non_blocking=*/true);
  on_side(false, [&] { b.copy_(pinned, /*non_blocking=*/true); });
  expect_faults(FaultKind::UnorderedAccess, {"copy to device reads", "pinned memory", "copy to host"});
}

TEST_F(VirtualFaults, DisjointHalvesAreNone) {
  const Tensor t = at::ones({32, 32}, on(device));
  on_side(true, [&] { t.narrow(0, 0, 16).add_(1); });
  t.narrow(0, 16, 16).add_(1);
  guard.synchronizeDevice(device.index());
  on_side(true, [&] { t.narrow(1, 0, 16).add_(1); });
  t.narrow(1, 16, 16).add_(1);
  EXPECT_EQ(fault_texts(), std::vector<std::string>{});
}

TEST_F(VirtualFaults, BackwardOnTheForwardsStreamIsNone) {
  const Tensor w = at::ones({64}, on(device)).requires_grad_();
  Tensor loss;
  on_side(true, [&] { loss = (w * 3).sum(); });
  order(side, main);
  loss.backward();
  const Tensor u = w.grad() * 2;
  EXPECT_EQ(u[0].item<float>(), 6);
}

// An operator of a library: a schema and a kernel that works on raw pointers.
void triple_(const Tensor& t) {
  auto* p = t.data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i) p[i] *= 3;
}
TORCH_LIBRARY(zero_virtual_test, m) { m.def("triple_(Tensor(a!) x) -> ()"); }
TORCH_LIBRARY_IMPL(zero_virtual_test, CPU, m) { m.impl("triple_", &triple_); }

TEST_F(VirtualFaults, OperatorWithAKernelForCpusOnly) {
  const Tensor t = at::ones({64}, on(device));
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("zero_virtual_test::triple_", "")
                      .typed<void(const Tensor&)>();
  op.call(t);
  expect_faults(FaultKind::HostOnlyOperator, {"zero_virtual_test::triple_", "kernel for CPUs only"});
  EXPECT_EQ(t[3].item<float>(), 3);
}

TEST(VirtualFaultErrors, AreThrownWhereAsked) {
  VirtualDeviceOptions options = plain_options();
  options.throw_on_fault = true;
  VirtualDevices devices(options);
  const Tensor t = at::empty({64}, torch::TensorOptions(devices.device()));
  test::expect_error(ErrorKind::Usage, {"aten::add", "uninitialised read", "Float[64]"}, [&] { t.add(1); });
  EXPECT_EQ(devices.faults().size(), 1);
}

TEST(VirtualFaultErrors, NoChecksFindNone) {
  VirtualDeviceOptions options = plain_options();
  options.checks = false;
  VirtualDevices devices(options);
  const Tensor t = at::empty({64}, torch::TensorOptions(devices.device()));
  t.add(1);
  EXPECT_TRUE(devices.faults().empty());
}

}  // namespace
}  // namespace zero::virtual_device::testing

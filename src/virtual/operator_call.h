#pragma once
// One operator call, translated from device tensors to CPU tensors over the same bytes, and its results back.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "virtual/runtime.h"

namespace zero::virtual_device {

/// What a call's tensors are for its kernel.
enum class Shown {
  Values,     // CPU tensors over the device's memory
  Addresses,  // the same; views of a storage without memory are made without touching it
  Shapes,     // tensors of LibTorch's device "meta": no memory
};

/// For one call on one thread. What is said of the CPU's tensors here is said of meta tensors where shapes
/// are shown.
class OperatorCall {
 public:
  explicit OperatorCall(Shown shown = Shown::Values) : shown_(shown) {}

  struct Operand {
    at::Tensor cpu, device;
    bool is_written, is_read;
  };

  /// Replaces device tensors, storages, generators and devices in `value` by the CPU's over the same memory.
  /// Throws c10::Error for tensors of different devices.
  void to_cpu(c10::IValue& value, bool is_written, bool is_read);
  at::Tensor to_cpu(const at::Tensor& tensor, bool is_written, bool is_read);

  /// What to_cpu() made, or an operator returned, as device tensors.
  void to_device(c10::IValue& value);
  at::Tensor to_device(const at::Tensor& tensor);

  /// Storages and shapes that the operator changed (resize_, out=, set_) change on the device too. True where
  /// it writes an operand.
  bool take_over_changes();

  /// -1 until a device tensor or device is seen.
  int device() const { return device_; }
  void default_device(int device) {
    if (device_ < 0) device_ = device;
  }
  c10::SmallVector<Operand, 6>& operands() { return operands_; }
  /// The CPU tensors of the arguments in order, those that are given twice too.
  c10::SmallVector<at::Tensor, 8> ordered() const;
  const c10::SmallVector<at::Tensor, 2>& fresh_results() const { return fresh_; }
  bool has_host_tensors() const { return host_tensors_ > 0; }
  bool has_mask() const { return has_mask_; }

 private:
  struct Alias {
    c10::Storage cpu, device;
    void* data;
  };
  c10::Storage storage_on_cpu(const c10::Storage& storage);
  c10::Storage storage_on_device(const c10::Storage& storage);
  void adopt(c10::StorageImpl& device, c10::StorageImpl& cpu);
  void take_memory(c10::StorageImpl& device, size_t bytes);

  const Shown shown_;
  int device_ = -1, host_tensors_ = 0;
  bool has_mask_ = false;
  c10::SmallVector<Operand, 6> operands_;  // distinct tensors
  c10::SmallVector<int, 8> order_;         // which of them each tensor argument is
  c10::SmallVector<Alias, 6> aliases_;
  c10::SmallVector<at::Tensor, 2> fresh_;  // results with memory of their own
};

}  // namespace zero::virtual_device

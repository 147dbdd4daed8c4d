#pragma once
// What a virtual device knows of an operator beside its kernel, from its schema and name.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>

#include "compute/operator_flops.h"
#include "zero/dtype.h"

namespace zero::virtual_device {

struct OperatorTraits {
  std::string name;                // "aten::add.Tensor" without the overload
  uint64_t written_arguments = 0;  // bit i: argument i is written
  uint64_t unread_arguments = 0;   // bit i: its values are not read: out=, fill_, normal_, ...
  int beta_argument = -1;          // where that argument is 0, `self` is not read
  bool is_view = false;            // returns aliases without reading
  bool waits = false;              // the host needs the values: item, nonzero
  bool is_index = false;           // waits for masks only, and takes indices of the host
  bool is_random = false;
  bool uses_values = true;       // not where only sizes, storages or types matter
  bool reads_rows_only = false;  // of its first tensor, as many as it gives out
  bool is_host_only = false;     // a library's operator with no kernel but the CPU's
  FlopsRule flops = FlopsRule::None;
};

/// Kept for the life of the process. Thread safe.
const OperatorTraits& traits_of(const c10::OperatorHandle& op);

/// Whose rates and curves count for operands of that type: its own where it is a float of 16 or 64 bits, else
/// f32's.
Dtype rate_type(c10::ScalarType type);

}  // namespace zero::virtual_device

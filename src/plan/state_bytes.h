#pragma once
// What the optimizer keeps of a master beside parameters of one type.

#include "zero/dtype.h"
#include "zero/plan.h"

namespace zero {

/// Bytes an element; 0 where the parameter is the master itself.
inline int64_t master_bytes_of(const StateBytes& state, Dtype parameter) {
  if (itemsize(parameter) >= 4) return 0;
  return parameter == Dtype::bf16 ? state.bf16_master_bytes : state.master_bytes;
}

}  // namespace zero

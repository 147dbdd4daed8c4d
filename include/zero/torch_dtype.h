#pragma once
// Element types of ours in LibTorch's words, and back.

#include <c10/core/ScalarType.h>

#include "zero/dtype.h"

namespace zero {

/// Throws Unsupported, naming it, for a type that has no counterpart (complex, quantised).
Dtype dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(Dtype dtype);

template <>
struct DtypeWord<c10::ScalarType> {
  static Dtype of(c10::ScalarType type) { return dtype_of(type); }
};

}  // namespace zero

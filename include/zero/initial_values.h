#pragma once
// Where an engine's first values come from, if not from its module.

#include <ATen/core/Tensor.h>

#include <string>

#include "zero/box.h"

namespace zero {

/// Initial values from elsewhere than the module, such as files: each rank asks for what it keeps, and for
/// nothing else.
class InitialValues {
 public:
  virtual ~InitialValues() = default;
  /// False: the module's own value counts. The same on all ranks. `name`: a parameter's first name.
  virtual bool holds(const std::string& name) const = 0;
  /// Fills `out` (fp32, on the CPU, [range.numel]) with a range of a box of a parameter, in row-major order
  /// of the box.
  virtual void read(const std::string& name, const BoxRange& range, at::Tensor out) const = 0;
  /// A whole parameter of that type where its file lies in memory, which nobody may write to. Undefined where
  /// there is none: the file has another type, or no place that the type may begin at.
  virtual at::Tensor mapped(const std::string& /*name*/, at::ScalarType /*dtype*/) const { return {}; }
};

}  // namespace zero

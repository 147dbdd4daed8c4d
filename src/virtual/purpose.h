#pragma once
// Labels of device memory.

#include "compute/memory_purpose.h"

namespace zero::virtual_device {

/// Memory of virtual devices that this thread, and backwards that it starts, take while the scope lives
/// counts as for its purpose ("parameters", "gradients", "activations"), where the engine does not say what
/// it is for; "other" outside.
using PurposeScope = detail::DefaultPurposeScope;

}  // namespace zero::virtual_device

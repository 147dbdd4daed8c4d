#pragma once
// Labels of device memory.

#include <memory>
#include <string_view>

namespace c10 {
class DebugInfoGuard;
}

namespace zero::virtual_device {

/// Memory of virtual devices that this thread, and backwards that it starts, take while the scope lives
/// counts as for `purpose` ("parameters", "gradients", "activations"); "other" outside. The innermost scope
/// counts. To be destroyed by its own thread, in reverse order of construction.
class PurposeScope {
 public:
  explicit PurposeScope(std::string_view purpose);
  ~PurposeScope();
  PurposeScope(const PurposeScope&) = delete;
  PurposeScope& operator=(const PurposeScope&) = delete;

 private:
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace zero::virtual_device

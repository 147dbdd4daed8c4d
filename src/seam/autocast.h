#pragma once
// LibTorch's autocast for a part of the program, whatever the program had set before.

#include <ATen/autocast_mode.h>

namespace zero::detail {

/// While it lives, operators of this thread on `device` that autocast knows compute in `dtype`. Casts are not
/// kept: one made of a parameter would be another copy of it, for as long as the forward lasts.
class AutocastScope {
 public:
  AutocastScope(at::DeviceType device, at::ScalarType dtype)
      : device_(device),
        was_on_(at::autocast::is_autocast_enabled(device)),
        cached_(at::autocast::is_autocast_cache_enabled()),
        dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastScope() {
    at::autocast::set_autocast_cache_enabled(cached_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_enabled(device_, was_on_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool was_on_, cached_;
  at::ScalarType dtype_;
};

}  // namespace zero::detail

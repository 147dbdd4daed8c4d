#pragma once
// Llama 3's way to a longer context than a model was first trained with: its rotations, stretched.

#include <cstdint>

namespace zero {

/// A wave shorter than original_context / high_freq_factor stays, one longer than original_context /
/// low_freq_factor is slowed down by `factor`, in between they are mixed.
struct RopeScaling {
  double factor = 0;  // 0: none; else >= 1
  double low_freq_factor = 1;
  double high_freq_factor = 4;      // > low_freq_factor
  int64_t original_context = 8192;  // tokens the model was first trained with

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

}  // namespace zero

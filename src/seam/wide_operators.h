#pragma once
// Parameters that are fp32 in a model of a narrower type, and operators that read them, for any model. A
// cast above autograd (above_autograd.h) and autocast: casts are seen by both, so gradients arrive in the
// type of what was cast; and above layers that are cut over ranks, which compute of what was cast.
//
// An operator that has views of a wide storage (one whose tag says StorageTag::narrow) among its arguments,
// is no view itself, and
//   - has other floating tensors, all fp32 or fp64, is left alone: what is fp32 stays so;
//   - has others of a narrower type: all narrower arguments become fp32, results of fp32 become `narrow`;
//   - has no other floating tensors (an embedding): results of fp32 become `narrow`.
// Composites (linear, layer_norm) are one operator here, with no rounding in between. In a backward only what
// is recomputed for it counts: gradients stay as wide as they are.

#include "seam/above_autograd.h"

namespace zero::detail {

/// While it lives, operators of this thread (and of the backward it runs) are treated so.
class WideOperators {
 public:
  /// `always`: without gradient mode too, as in a forward.
  explicit WideOperators(bool always);
  ~WideOperators();
  WideOperators(const WideOperators&) = delete;
  WideOperators& operator=(const WideOperators&) = delete;

 private:
  CastOperators cast_;
  bool previous_always_;
};

}  // namespace zero::detail

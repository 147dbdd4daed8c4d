#pragma once
// Operators that LibTorch computes slowly on CPU, computed by ours. The engine opens such a scope for its
// forward and backward (EngineOptions::cpu_operators); here it is for code that runs without an engine.

#include <memory>

namespace zero {

/// While it lives, operators of this thread (and of the backward it runs) are ours where we have a faster
/// one: attention, tanh GELU, products of bf16. Their results differ from LibTorch's by rounding. Sparse
/// tensors, and those of fp32 where LibTorch was told to multiply them with less precision, stay LibTorch's.
/// A library built with ZERO_CPU_OPERATORS=OFF has none. May nest. To be destroyed by its own thread, in
/// reverse order of construction.
class CpuOperators {
 public:
  CpuOperators();
  ~CpuOperators();
  CpuOperators(const CpuOperators&) = delete;
  CpuOperators& operator=(const CpuOperators&) = delete;

  /// False where the library was built without them.
  static bool exist();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero

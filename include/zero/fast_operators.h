#pragma once
// Operators that LibTorch computes slowly on CPU, computed by ours. The engine opens such a scope for its
// forward and backward (EngineOptions::fast_operators); here it is for code that runs without an engine.

#include <memory>

namespace zero {

/// While it lives, operators of this thread (and of the backward it runs) are ours where we have a faster
/// one: attention, tanh GELU, log-softmax, matrix products, in bf16 the gradients of biases. Their results
/// differ from LibTorch's by rounding. May nest. To be destroyed by its own thread, in reverse order of
/// construction.
class FastOperators {
 public:
  FastOperators();
  ~FastOperators();
  FastOperators(const FastOperators&) = delete;
  FastOperators& operator=(const FastOperators&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero

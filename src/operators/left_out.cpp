// In place of all that is behind cpu_operators.h, for ZERO_CPU_OPERATORS=OFF.
#include "operators/cpu_operators.h"

namespace zero::detail {

bool has_cpu_operators() { return false; }

bool run_cpu_operator(const c10::OperatorHandle& /*op*/, torch::jit::Stack& /*stack*/) { return false; }

void prepare_cpu_operators(const std::vector<at::Tensor>& /*outputs*/) {}

}  // namespace zero::detail

#include "operators/cpu_operators.h"
#include "seam/dispatch.h"
#include "zero/cpu_operators.h"

namespace zero {

struct CpuOperators::State {
  detail::InterceptOperators intercept{detail::current_recorder(), &detail::run_cpu_operator};
};

CpuOperators::CpuOperators() : state_(std::make_unique<State>()) {}
CpuOperators::~CpuOperators() = default;

bool CpuOperators::exist() { return detail::has_cpu_operators(); }

}  // namespace zero

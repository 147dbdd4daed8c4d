#pragma once
// Tests that draw their cases at random run some of them in the suite and many under `./dev soak`.

#include <cstdlib>

namespace zero::testing {

inline int soak_or(int in_suite, int in_soak) { return std::getenv("ZERO_SOAK") ? in_soak : in_suite; }

}  // namespace zero::testing

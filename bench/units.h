#pragma once
// The processor's own limit for products: multiplications and sums of registers, with nothing to fetch.

#include <optional>

namespace zero::bench {

/// GFLOP/s of this thread's fused multiply-adds of fp32 vectors, measured for `seconds`.
double fp32_unit_gflops(double seconds);
/// The same of bf16 tiles (AMX), for which the process must have the kernel's permission; nothing where this
/// program was built for a processor without them.
std::optional<double> bf16_unit_gflops(double seconds);

}  // namespace zero::bench

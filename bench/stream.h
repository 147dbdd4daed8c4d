#pragma once
// The memory traffic of an optimizer kernel with next to no arithmetic: the bound that kernels are held
// against.

#include <cstdint>
#include <vector>

namespace zero::bench {

/// Reads `gradient` and `states` more fp32 arrays beside the master, writes those and the upper halves of the
/// master. With a remainder instead of a master: reads and writes parameter and remainder.
struct Stream {
  float* master;
  int16_t* remainder;
  const float* gradient;
  float* first;   // null: no state
  float* second;  // null: one state
  uint16_t* parameter;
};

void run_stream(const Stream& stream, int64_t begin, int64_t end);

/// out [n] fp32 <- the sum of rows [n], fp32 or bf16: the least that a reduce-scatter does.
void add_rows(float* out, const std::vector<const void*>& rows, int64_t n, bool bf16);

}  // namespace zero::bench

#include "lazy/mersenne_skip.h"

#include "base/vector_versions.h"

namespace zero::detail {
namespace {

constexpr int kWords = 624, kAhead = 397;

ZERO_INLINE uint32_t twist(uint32_t word, uint32_t next) {
  const uint32_t mixed = (word & 0x80000000u) | (next & 0x7fffffffu);
  return mixed >> 1 ^ ((0u - (next & 1u)) & 0x9908b0dfu);
}

}  // namespace

ZERO_VECTOR_VERSIONS
void turn_mersenne_state(uint32_t* state) {
  // A word needs ones that are 397 ahead or 227 behind: further than a register is wide.
  for (int i = 0; i < kWords - kAhead; ++i) state[i] = state[i + kAhead] ^ twist(state[i], state[i + 1]);
  for (int i = kWords - kAhead; i < kWords - 1; ++i)
    state[i] = state[i + kAhead - kWords] ^ twist(state[i], state[i + 1]);
  state[kWords - 1] = state[kAhead - 1] ^ twist(state[kWords - 1], state[0]);
}

}  // namespace zero::detail

#pragma once
// One turn of the Mersenne Twister's state (mt19937), in vector registers.

#include <cstdint>

namespace zero::detail {

/// `state`: 624 words, replaced by the next 624. The recurrence of Matsumoto and Nishimura (1998).
void turn_mersenne_state(uint32_t* state);

}  // namespace zero::detail

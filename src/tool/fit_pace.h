#pragma once
// Keeps `zero fit` to its minutes on a machine that slows down.

#include <cstdint>

namespace zero::tool {

/// Steps that the whole run shall have after `done` of `planned`, where one takes `step_s` and `left_s` is
/// left: as planned unless that takes over a tenth longer, otherwise as many as the time holds, and at least
/// a sixteenth of those done, in which the learning rate falls to its end.
int64_t steps_in_time(int64_t planned, int64_t done, double step_s, double left_s);

}  // namespace zero::tool

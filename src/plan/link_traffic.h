#pragma once
// What passes between a device and the host's memory in a step because states are on the host or on a disk.

#include "zero/plan.h"

namespace zero {

struct LinkBytes {
  int64_t up = 0, down = 0;  // to the device, and from it
};

/// Of one unit, whose parameters are gathered `gathers` times. Nothing on CPU. What is on a disk passes the
/// host's memory and counts as what is there.
LinkBytes link_bytes_of(const Plan& plan, const UnitLayout& unit, int64_t gathers);

/// Fills in step_up_bytes and step_down_bytes.
void add_link_traffic(Plan& plan);

}  // namespace zero

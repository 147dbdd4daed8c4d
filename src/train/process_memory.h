#pragma once
// What the operating system says this process holds.

#include <cstdint>

namespace zero::training {

struct ProcessMemory {
  int64_t resident_bytes = 0;       // now
  int64_t peak_resident_bytes = 0;  // since the process began
};

/// Zeros where the system does not tell.
ProcessMemory process_memory();

/// Memory that the host has free, or the control group it runs in, where that has less; the largest number
/// where the system does not tell.
int64_t free_memory_bytes();

}  // namespace zero::training

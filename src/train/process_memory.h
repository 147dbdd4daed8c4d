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

}  // namespace zero::training

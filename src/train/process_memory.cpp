#include "train/process_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace zero::training {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  if (statm >> total_pages >> resident_pages)
    memory.resident_bytes = resident_pages * ::sysconf(_SC_PAGESIZE);
  struct rusage usage {};
  constexpr int64_t kUnit = 1024;  // Linux counts kibibytes here
  if (::getrusage(RUSAGE_SELF, &usage) == 0) memory.peak_resident_bytes = int64_t{usage.ru_maxrss} * kUnit;
  // The two are read one after the other, and the kernel updates the peak late.
  memory.peak_resident_bytes = std::max(memory.peak_resident_bytes, memory.resident_bytes);
  return memory;
}

}  // namespace zero::training

#include "train/process_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace zero::training {
namespace {

std::optional<int64_t> number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

}  // namespace

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

int64_t free_memory_bytes() {
  constexpr int64_t kUnit = 1024;
  int64_t free = std::numeric_limits<int64_t>::max(), value = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string key, rest; info >> key >> value; std::getline(info, rest))
    if (key == "MemAvailable:") free = value * kUnit;
  // A container's. "max" is no number: it has no limit of its own.
  const auto limit = number_in("/sys/fs/cgroup/memory.max"),
             used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) free = std::min(free, std::max<int64_t>(0, *limit - *used));
  return free;
}

}  // namespace zero::training

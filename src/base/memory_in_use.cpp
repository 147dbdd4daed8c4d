#include "zero/memory_in_use.h"

#include <atomic>

namespace zero {
namespace {

std::atomic<int64_t> used{0}, peak{0};

}  // namespace

MemoryInUse memory_in_use() { return {.used_bytes = used, .peak_bytes = peak}; }

void reset_memory_peak() { peak = used.load(); }

namespace detail {

void count_memory(int64_t bytes) noexcept {
  const int64_t now = used.fetch_add(bytes) + bytes;
  for (int64_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) {
  }
}

}  // namespace detail
}  // namespace zero

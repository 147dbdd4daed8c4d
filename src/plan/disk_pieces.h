#pragma once
// How states on disk are cut: what is read, updated and written at a time.

#include <cstdint>

namespace zero {

/// Of memory, offsets and sizes of transfers that bypass the system's cache.
inline constexpr int64_t kDiskAlignment = 4096;

}  // namespace zero

#pragma once
// How states on disk are cut: what is read, updated and written at a time.

#include <cstdint>

namespace zero {

/// Of memory, offsets and sizes of transfers that bypass the system's cache.
inline constexpr int64_t kDiskAlignment = 4096;

/// Of a shard: piece i has elements [i * piece_numel, (i + 1) * piece_numel), the last one what is left.
inline int64_t pieces_of(int64_t shard_numel, int64_t piece_numel) {
  return (shard_numel + piece_numel - 1) / piece_numel;
}

}  // namespace zero

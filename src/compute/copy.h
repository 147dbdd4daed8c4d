#pragma once

#include <cstddef>

namespace zero::detail {

/// memcpy for what nobody reads while it is still cached: large copies go past the caches, which would first
/// read the lines that are about to be overwritten. The C library does so only where one call copies most of
/// a cache.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace zero::detail

#pragma once

#include <cstddef>

namespace zero::detail {

/// memcpy past the caches, which would first read the lines that are about to be overwritten: for what nobody
/// reads while it is still cached. The C library does so only where one call copies most of a cache.
void stream_bytes(void* to, const void* from, size_t bytes);

/// memcpy; large copies go past the caches.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace zero::detail

#pragma once

#include <cstddef>

#include "base/processor.h"

namespace zero::detail {

/// memcpy past the caches, which would first read the lines that are about to be overwritten: for what nobody
/// reads while it is still cached. The C library does so only where one call copies most of a cache. `pages`
/// are passed over side by side.
void stream_bytes(void* to, const void* from, size_t bytes, int pages = pages_side_by_side());

/// memcpy; large copies go past the caches.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace zero::detail

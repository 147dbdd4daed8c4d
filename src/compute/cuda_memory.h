#pragma once
// Settings of LibTorch's CUDA allocator.

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace zero::detail {

/// What LibTorch's allocators are to be told, in the words of PYTORCH_ALLOC_CONF; nothing where the
/// environment says something itself, which then holds whole, or where there is nothing to say.
std::optional<std::string> allocator_settings(bool expandable_segments);

/// Before the first CUDA tensor. Throws what LibTorch throws for settings that it does not take.
void use_allocator_settings(const std::string& settings);

/// LibTorch takes at most `bytes` of the device from now on, and frees what it keeps unused before it throws
/// its out-of-memory error, which then names this limit. `place`: of the setting, in errors. Throws Config
/// for more than the device has, Unsupported without libzero_cuda.so.
void limit_cuda_memory(c10::Device device, int64_t bytes, const std::string& place);

}  // namespace zero::detail

#include "compute/cuda_memory.h"

#include <c10/core/AllocatorConfig.h>

#include <cstdlib>

#include "base/cuda_plugin.h"
#include "base/plugin.h"
#include "zero/error.h"

namespace zero::detail {

std::optional<std::string> allocator_settings(bool expandable_segments) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"})
    if (const char* own = std::getenv(name); own != nullptr && *own != '\0') return std::nullopt;
  if (!expandable_segments) return std::nullopt;
  return "expandable_segments:True";
}

void use_allocator_settings(const std::string& settings) {
  c10::CachingAllocator::setAllocatorSettings(settings);
}

void limit_cuda_memory(c10::Device device, int64_t bytes, const std::string& place) {
  static const PluginFunction loaded = load_plugin(kCudaPlugin, kCudaMemoryLimit, PluginScope::Shared);
  require(loaded.function != nullptr, ErrorKind::Unsupported, place, loaded.problem,
          "build libzero_cuda.so (./dev cuda) and put it beside libzero.so or name its folder in "
          "ZERO_PLUGIN_DIR, or set no limit");
  const int64_t total = reinterpret_cast<CudaMemoryLimit*>(loaded.function)(device.index(), bytes);
  require(bytes <= total, ErrorKind::Config, place,
          std::to_string(bytes) + " bytes are more than the " + std::to_string(total) + " of " + device.str(),
          "give at most those, or null for all");
}

}  // namespace zero::detail

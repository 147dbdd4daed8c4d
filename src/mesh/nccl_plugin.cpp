// NCCL lives in a plugin, so that the library neither links to CUDA nor needs it: libzero_nccl.so, built with
// -DZERO_CUDA=ON, is loaded when a mesh asks for it.

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "mesh/nccl/plugin.h"
#include "mesh/transport.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

namespace fs = std::filesystem;

// The folder of the file that holds this function: the library's, or the program's where it is linked in.
fs::path own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<void*>(&own_folder), &info) || !info.dli_fname) return {};
  std::error_code ignored;
  return fs::canonical(info.dli_fname, ignored).parent_path();
}

// ZERO_PLUGIN_DIR alone where it is set; else beside the library, beside the program, and the system's
// places.
std::vector<std::string> candidates() {
  if (const char* folder = std::getenv("ZERO_PLUGIN_DIR"); folder && *folder)
    return {(fs::path(folder) / kNcclPlugin).string()};
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const fs::path& folder : {own_folder(), fs::read_symlink("/proc/self/exe", ignored).parent_path()}) {
    paths.push_back((folder / kNcclPlugin).string());
    paths.push_back((folder / "../lib" / kNcclPlugin).string());
  }
  paths.push_back(kNcclPlugin);
  return paths;
}

[[noreturn]] void missing(const std::string& why) {
  fail(ErrorKind::Unsupported, "transport nccl", why,
       "build with -DZERO_CUDA=ON, put libzero_nccl.so beside libzero.so or name its folder in "
       "ZERO_PLUGIN_DIR, and "
       "use a LibTorch with CUDA");
}

}  // namespace

std::shared_ptr<Transport> load_nccl_transport(const TransportOptions& options) {
  require(options.device.is_cuda(), ErrorKind::Unsupported, "transport nccl",
          "moves CUDA tensors only, device " + options.device.str(), "use transport gloo");
  std::string reasons;
  void* plugin = nullptr;
  for (const std::string& path : candidates()) {
    if (path != kNcclPlugin && !fs::exists(path)) continue;
    plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (plugin) break;
    reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (reasons.empty()) reasons = "libzero_nccl.so was not found";
  if (!plugin) missing(reasons);
  auto make = reinterpret_cast<NcclFactory*>(dlsym(plugin, kNcclFactory));
  if (!make) missing(std::string(kNcclPlugin) + " is of another version of this library");
  // Never unloaded: its code may be on the stack of LibTorch's threads until the process ends.
  std::shared_ptr<Transport> transport;
  try {
    make(&options, &transport);
  } catch (const std::exception& e) {
    std::string text = e.what();
    missing(text.substr(0, text.find('\n')));
  }
  return transport;
}

}  // namespace zero::detail

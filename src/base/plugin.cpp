#include "base/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

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

std::vector<std::string> candidates(const char* file) {
  if (const char* folder = std::getenv("ZERO_PLUGIN_DIR"); folder && *folder)
    return {(fs::path(folder) / file).string()};
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const fs::path& folder : {own_folder(), fs::read_symlink("/proc/self/exe", ignored).parent_path()})
    for (const char* place : {".", "../lib", ".."})  // "..": of a build folder's programs
      if (fs::path path = (folder / place / file).lexically_normal(); fs::exists(path, ignored))
        paths.push_back(path.string());
  paths.emplace_back(file);
  return paths;
}

#if defined(__has_feature)
#define ZERO_HAS_FEATURE(name) __has_feature(name)
#else
#define ZERO_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || ZERO_HAS_FEATURE(address_sanitizer) || \
    ZERO_HAS_FEATURE(thread_sanitizer)
// The sanitizers replace malloc for everybody, and end a program that asks for a scope before theirs.
constexpr int kOwnScope = RTLD_LOCAL;
#else
constexpr int kOwnScope = RTLD_LOCAL | RTLD_DEEPBIND;
#endif

}  // namespace

PluginFunction load_plugin(const char* file, const char* function, PluginScope scope) {
  PluginFunction result;
  for (const std::string& path : candidates(file)) {
    void* plugin = dlopen(path.c_str(), RTLD_NOW | (scope == PluginScope::Own ? kOwnScope : RTLD_GLOBAL));
    if (plugin == nullptr) {
      result.problem += (result.problem.empty() ? "" : "; ") + std::string(dlerror());
      continue;
    }
    result.function = dlsym(plugin, function);
    result.problem = result.function ? "" : std::string(file) + " is of another version of this library";
    break;
  }
  return result;
}

}  // namespace zero::detail

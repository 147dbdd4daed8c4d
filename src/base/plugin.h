#pragma once
// Libraries that are loaded when they are first needed.

#include <string>

namespace zero::detail {

enum class PluginScope {
  Shared,  // its symbols serve what is loaded later
  Own,     // it and the libraries it needs find their own symbols first, and nobody else finds those
};

struct PluginFunction {
  void* function = nullptr;
  std::string problem;  // why there is none
};

/// Loads `file` ("libzero_NAME.so") and finds its function. Looks in ZERO_PLUGIN_DIR alone where that is set;
/// else beside this library, beside the program, and in the system's places. Plugins are never unloaded:
/// their code may be on some thread's stack until the process ends.
PluginFunction load_plugin(const char* file, const char* function, PluginScope scope);

}  // namespace zero::detail

// NCCL lives in a plugin, so that the library neither links to CUDA nor needs it: libzero_nccl.so, built with
// -DZERO_CUDA=ON, is loaded when a mesh asks for it.

#include "base/plugin.h"
#include "mesh/nccl/plugin.h"
#include "mesh/transport.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

[[noreturn]] void missing(const std::string& why) {
  fail(ErrorKind::Unsupported, "transport nccl", why,
       "build with -DZERO_CUDA=ON, put libzero_nccl.so beside libzero.so or name its folder in "
       "ZERO_PLUGIN_DIR, and use a LibTorch with CUDA");
}

}  // namespace

std::shared_ptr<Transport> load_nccl_transport(const TransportOptions& options) {
  require(options.device.is_cuda(), ErrorKind::Unsupported, "transport nccl",
          "moves CUDA tensors only, device " + options.device.str(), "use transport gloo");
  const PluginFunction loaded = load_plugin(kNcclPlugin, kNcclFactory, PluginScope::Shared);
  if (!loaded.function) missing(loaded.problem);
  auto make = reinterpret_cast<NcclFactory*>(loaded.function);
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

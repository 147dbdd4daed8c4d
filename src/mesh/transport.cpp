#include "mesh/transport.h"

#include "zero/error.h"

namespace zero::detail {

std::shared_ptr<Transport> make_transport(const std::string& name, const TransportOptions& options) {
  std::string chosen = name;
  if (name == "auto" && options.device.is_cuda()) chosen = "nccl";
  if (chosen == "auto")
    return make_hosts_transport([options] { return make_shm_transport(options); },
                                [options] { return make_gloo_transport(options); }, options.communication);
  if (chosen == "shm") return make_shm_transport(options);
  if (chosen == "gloo") return make_gloo_transport(options);
  if (chosen == "nccl") return make_nccl_transport(options);
  fail(ErrorKind::Config, "transport", "unknown transport \"" + name + "\"", "use auto, shm, gloo or nccl");
}

}  // namespace zero::detail

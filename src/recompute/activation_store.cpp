#include "zero/activation_store.h"

#include <string>

#include "recompute/offload_hooks.h"
#include "recompute/saved_tensor_hooks.h"
#include "zero/error.h"

namespace zero {
namespace {

void require_sizes(const ActivationStoreOptions& options) {
  require(options.tier != Tier::Device, ErrorKind::Usage, "ActivationStoreOptions::tier",
          "activations are in the device's memory without a store", "choose host or disk");
  require(options.buffer_bytes >= 0, ErrorKind::Usage, "ActivationStoreOptions::buffer_bytes",
          std::to_string(options.buffer_bytes) + " bytes");
  require(options.least_bytes >= 0, ErrorKind::Usage, "ActivationStoreOptions::least_bytes",
          std::to_string(options.least_bytes) + " bytes");
  require(options.tier != Tier::Disk || !options.path.empty(), ErrorKind::Config, options.key,
          "there is no directory for activations on a disk", "name an existing directory on a disk");
}

}  // namespace

struct ActivationStore::Scope::Hooks {
  explicit Hooks(std::shared_ptr<detail::OffloadHooks> given) : hooks(std::move(given)), scope(*hooks) {}
  std::shared_ptr<detail::OffloadHooks> hooks;
  detail::SavedTensorHooksScope scope;
};

ActivationStore::Scope::Scope(const ActivationStore& store) : hooks_(std::make_unique<Hooks>(store.hooks_)) {}
ActivationStore::Scope::~Scope() = default;

ActivationStore::ActivationStore(const ActivationStoreOptions& options) {
  require_sizes(options);
  hooks_ = std::make_shared<detail::OffloadHooks>(
      options.tier == Tier::Disk ? detail::keep_on_disk(options) : detail::keep_on_host(),
      options.least_bytes);
}
ActivationStore::~ActivationStore() = default;
ActivationStore::ActivationStore(ActivationStore&&) noexcept = default;
ActivationStore& ActivationStore::operator=(ActivationStore&&) noexcept = default;

ActivationStore::Rates ActivationStore::measure(c10::Device device) const {
  const auto [out_s, back_s] = hooks_->keeper().measure(device);
  return {.out_s = out_s, .back_s = back_s};
}

ActivationStoreStats ActivationStore::stats() const { return hooks_->keeper().stats(); }

}  // namespace zero

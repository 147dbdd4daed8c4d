#include "recompute/offload_hooks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "base/shape_text.h"
#include "recompute/saved_parameter.h"
#include "seam/storage_access.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

/// In a node of autograd's graph: a view of a storage that was put, or the tensor itself.
class Offloaded : public torch::autograd::SavedVariableHooks {
 public:
  explicit Offloaded(std::shared_ptr<OffloadHooks> hooks) : hooks_(std::move(hooks)) {}
  ~Offloaded() override {
    if (storage_) storage_->remove_user(turn_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    if (!hooks_->goes(tensor)) {
      const at::NoGradGuard no_grad;
      kept_ = tensor.detach();
      version_ = tensor._version();
      return;
    }
    const std::shared_ptr<OffloadedStorage> storage = hooks_->put(tensor);
    options_ = tensor.options();
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
    storage->add_user();
    storage_ = storage;
  }

  at::Tensor call_unpack_hook() override {
    if (!storage_) {
      require(!kept_.defined() || kept_._version() == version_, ErrorKind::Usage, "activations",
              "a tensor " + shape_text({kept_.sizes().data(), kept_.sizes().size()}) +
                  " that backward needs was written in place between forward and backward",
              "write parameters after backward, and other tensors' values into a tensor of their own");
      return kept_;
    }
    const at::NoGradGuard no_grad;
    at::Tensor tensor = at::empty({0}, options_);
    return tensor.set_(storage_->take(turn_), offset_, sizes_, strides_);
  }

 private:
  std::shared_ptr<OffloadHooks> hooks_;
  std::shared_ptr<OffloadedStorage> storage_;
  uint64_t turn_ = 0;
  at::TensorOptions options_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  at::Tensor kept_;
  uint32_t version_ = 0;
};

}  // namespace

void OffloadedStorage::add_user() {
  const std::lock_guard lock(mutex_);
  users_++;
}

void OffloadedStorage::remove_user(uint64_t turn) {
  c10::Storage gone;  // its memory goes without the lock
  const std::lock_guard lock(mutex_);
  users_--;
  if (turn == turn_) taken_--;
  gone = end_turn_if_over();
}

c10::Storage OffloadedStorage::take(uint64_t& turn) {
  const std::lock_guard lock(mutex_);
  if (!here_) here_ = kept_->bring();
  c10::Storage result = here_;
  if (turn != turn_) {
    turn = turn_;
    taken_++;
  }
  end_turn_if_over();
  return result;
}

// Whoever comes once more has kept the graph: the bytes are brought again.
c10::Storage OffloadedStorage::end_turn_if_over() {
  if (!here_ || taken_ < users_) return {};
  turn_++;
  taken_ = 0;
  return std::exchange(here_, {});
}

std::unique_ptr<torch::autograd::SavedVariableHooks> OffloadHooks::make() {
  return std::make_unique<Offloaded>(shared_from_this());
}

bool OffloadHooks::goes(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() && keeper_->takes(tensor.device()) &&
         static_cast<int64_t>(tensor.storage().nbytes()) >= least_bytes_ && tag_of(tensor) == nullptr &&
         !is_parameter(tensor);
}

std::shared_ptr<OffloadedStorage> OffloadHooks::put(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  const c10::Storage& storage = tensor.storage();
  const std::pair key{storage.unsafeGetStorageImpl(), static_cast<int64_t>(tensor._version())};
  // A storage's address is not given again while somebody knows it weakly.
  if (const auto found = known_.find(key); found != known_.end() && !found->second.storage.expired())
    if (auto offloaded = found->second.offloaded.lock()) return offloaded;
  auto offloaded = std::make_shared<OffloadedStorage>(keeper_->put(storage));
  known_.insert_or_assign(key, Known{.storage = storage.getWeakStorageImpl(), .offloaded = offloaded});
  forget_dead();
  return offloaded;
}

void OffloadHooks::forget_dead() {
  if (known_.size() < forget_at_) return;
  std::erase_if(known_, [](const auto& item) {
    return item.second.storage.expired() || item.second.offloaded.expired();
  });
  forget_at_ = std::max<size_t>(64, 2 * known_.size());
}

}  // namespace zero::detail

#pragma once
// Hooks that give the tensors which autograd saves to a keeper of storages.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "recompute/saved_tensor_hooks.h"
#include "recompute/storage_keeper.h"

namespace zero::detail {

/// A storage that some saved tensors are views of.
class OffloadedStorage {
 public:
  explicit OffloadedStorage(std::unique_ptr<KeptStorage> kept) : kept_(std::move(kept)) {}
  void add_user();
  /// `turn`: as take() left it.
  void remove_user(uint64_t turn);
  /// Its bytes, in memory until every user has taken them. `turn`: the user's own, 0 in the beginning.
  c10::Storage take(uint64_t& turn);

 private:
  c10::Storage end_turn_if_over();

  std::mutex mutex_;
  std::unique_ptr<KeptStorage> kept_;
  c10::Storage here_;
  int64_t users_ = 0, taken_ = 0;
  uint64_t turn_ = 1;
};

/// Thread safe.
class OffloadHooks : public std::enable_shared_from_this<OffloadHooks>, public SavedTensorHooks {
 public:
  OffloadHooks(std::shared_ptr<StorageKeeper> keeper, int64_t least_bytes)
      : keeper_(std::move(keeper)), least_bytes_(least_bytes) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> make() override;
  StorageKeeper& keeper() const { return *keeper_; }

  /// Parameters, what belongs to the engine, small and unusual tensors do not go.
  bool goes(const at::Tensor& tensor) const;
  std::shared_ptr<OffloadedStorage> put(const at::Tensor& tensor);

 private:
  /// A storage that was put, while it lives.
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::weak_ptr<OffloadedStorage> offloaded;
  };
  void forget_dead();

  std::shared_ptr<StorageKeeper> keeper_;
  int64_t least_bytes_;
  std::mutex mutex_;
  // By storage and the tensor's version.
  std::map<std::pair<const c10::StorageImpl*, int64_t>, Known> known_;
  size_t forget_at_ = 64;
};

}  // namespace zero::detail

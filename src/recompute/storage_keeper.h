#pragma once
// Where the bytes of a storage wait for backward.

#include <c10/core/Storage.h>

#include <memory>

#include "zero/activation_store.h"

namespace zero::detail {

/// The bytes of one storage, as they were when it was put.
class KeptStorage {
 public:
  virtual ~KeptStorage() = default;
  /// A storage of its own with these bytes, on the device of the first. May be called again.
  virtual c10::Storage bring() = 0;
};

/// Thread safe. Storages are brought back in about the reverse of the order in which they were put.
class StorageKeeper {
 public:
  /// Seconds a byte, each way.
  struct Rates {
    double out_s = 0, back_s = 0;
  };

  virtual ~StorageKeeper() = default;
  virtual bool takes(c10::Device device) const = 0;
  /// The storage may be written or let go of when this returns. What it returns may outlive the caller's
  /// reference to the keeper.
  virtual std::unique_ptr<KeptStorage> put(const c10::Storage& storage) = 0;
  virtual ActivationStoreStats stats() const = 0;
  /// What transfers of some tens of mebibytes between it and `device` take now: it moves some.
  virtual Rates measure(c10::Device device) = 0;
};

/// Memory of the host, page-locked, for storages on a device.
std::shared_ptr<StorageKeeper> keep_on_host();
/// A file on a disk. Throws as ActivationStore.
std::shared_ptr<StorageKeeper> keep_on_disk(const ActivationStoreOptions& options);

}  // namespace zero::detail

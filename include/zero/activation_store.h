#pragma once
// Activations beside the memory that computes: what operators save for backward waits in memory of the host
// or on a disk, and comes back before backward needs it. torch.autograd.graph.save_on_cpu, with a disk;
// ZeRO-Infinity (Rajbhandari et al. 2021) moves its checkpoints so.
//
//   zero::ActivationStore store({.tier = zero::Tier::Disk, .path = "/scratch"});
//   {
//     const zero::ActivationStore::Scope scope(store);
//     loss = model->loss(batch);
//   }
//   loss.backward();
//
// Results have the same bits. Recomputed parts (recompute.h) inside a scope store their inputs.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "zero/tier.h"

namespace zero {

struct ActivationStoreOptions {
  Tier tier = Tier::Host;
  // Tier::Disk: an existing directory on a disk. The store has a file there, for its user alone and without a
  // name, which grows to the most that is there at a time: a full disk is found in the first step.
  std::string path = {};
  // Tier::Disk: of memory that values pass through behind forward, and of as much ahead of backward; one
  // tensor at least. What was saved last is still there when backward begins.
  int64_t buffer_bytes = 64LL << 20;
  int64_t least_bytes = 16LL << 10;  // smaller ones stay where they are
  // Tier::Disk: as in OffloadOptions (tier.h).
  int64_t block_bytes = 1LL << 20;
  int queue_depth = 16;
  int threads = 2;
  std::string key = "ActivationStoreOptions::path";  // what names the directory, for errors
};

struct ActivationStoreStats {
  std::string transport;     // how a disk is reached; "" for memory of the host
  int64_t stored_bytes = 0;  // outside the memory that computes, now
  int64_t peak_stored_bytes = 0;
  int64_t buffer_bytes = 0;  // of memory that they pass through, now
  int64_t written_bytes = 0, read_bytes = 0;
  double busy_s = 0;  // time in which a disk was asked for something
};

namespace detail {
class OffloadHooks;
}

/// Thread safe. Tensors that were saved keep what they need of it alive. Backward may use a graph several
/// times (retain_graph), and be differentiated itself.
class ActivationStore {
 public:
  /// Throws Config, naming options.key, for a directory that is none or in memory (tmpfs), Io where it is not
  /// writable, Usage for sizes that make no sense.
  explicit ActivationStore(const ActivationStoreOptions& options);
  ~ActivationStore();
  ActivationStore(ActivationStore&&) noexcept;
  ActivationStore& operator=(ActivationStore&&) noexcept;

  /// While it lives, what this thread's operators save goes to the store: once for all tensors of one
  /// storage. Parameters and their views stay, and so do small tensors; with Tier::Host those of the CPU,
  /// where they would come from and go to the same memory. A scope inside another one, or inside a recomputed
  /// part, takes its tensors from that.
  ///
  /// Operators throw Io where the disk is full or fails, backward throws Io or, for bytes that are not those
  /// that were written, Corrupt; Usage where a parameter was written in place since it was saved.
  class Scope {
   public:
    explicit Scope(const ActivationStore& store);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    struct Hooks;
    std::unique_ptr<Hooks> hooks_;
  };

  ActivationStoreStats stats() const;

  /// Seconds a byte takes each way, between `device` and the store: measured now with some tens of mebibytes.
  struct Rates {
    double out_s = 0, back_s = 0;
  };
  Rates measure(c10::Device device) const;

 private:
  std::shared_ptr<detail::OffloadHooks> hooks_;
};

}  // namespace zero

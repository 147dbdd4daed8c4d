#pragma once
// Pieces of shards that the CPU updates beside a device (ZeRO-Offload, Ren et al. 2021): what of a piece is
// on the device comes to pinned memory, is updated there together with what the host keeps, and goes back.
// The next pieces come, and the last ones go, while one is updated.

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "optim/host_tier.h"
#include "optim/rule_memory.h"
#include "optim/state_store.h"

namespace zero {

class HostSweep {
 public:
  /// `pieces`: of units in the order in which they are taken, those of one unit together. `kinds`: what the
  /// rule updates; those of them that are on a device go back there if `writes`. What the current stream has
  /// been given comes first. Everything given by reference outlives this.
  HostSweep(StateStore& states, HostTier& host, std::vector<StatePiece> pieces,
            std::vector<std::string_view> kinds, bool writes);
  HostSweep(const HostSweep&) = delete;
  HostSweep& operator=(const HostSweep&) = delete;

  /// The next piece, all of it in the host's memory: waits for what comes from the device. Until done().
  const RuleMemory& next();
  /// The piece is updated: the host leaves its memory alone.
  void done();
  /// After the last piece: the current stream goes on when all is back on the device. The host does not wait.
  void finish();

 private:
  /// One kind of a piece that has come from the device.
  struct Staged {
    std::string_view kind;
    at::Tensor on_device, on_host;
  };
  /// What a unit lends while pieces of it are under way.
  struct UnitLoan {
    StateStore::Lease updated, gradients;
    std::vector<std::string_view> device_kinds, host_kinds;
    bool gradient_is_on_disk = false;
  };
  struct Piece {
    StatePiece where;
    std::shared_ptr<UnitLoan> loan;
    std::vector<Staged> staged;
    detail::Transfer arrival;
  };

  std::shared_ptr<UnitLoan> borrow(int unit);
  HostTier::Slot& slot_of(size_t piece) { return host_.slots[piece % host_.slots.size()]; }
  void start(size_t index);
  void collect(Piece& piece);

  StateStore& states_;
  HostTier& host_;
  std::vector<std::string_view> kinds_;
  bool writes_;
  std::vector<Piece> pieces_;
  size_t next_ = 0, started_ = 0;
  std::optional<RuleMemory> memory_;  // of the piece that is lent
  detail::Transfer last_upload_;
};

}  // namespace zero

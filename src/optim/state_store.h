#pragma once
// The states of this rank's units: parameter shard, master, gradient's sum and what the optimizer keeps, each
// by (unit, kind). Whoever needs some borrows them for a gather, an update, a snapshot or a load and keeps
// nothing beyond, so that where they are in between is the store's affair.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zero/tier.h"

namespace zero {

namespace detail {
class PassingMemory;
}
namespace tiers {
class DiskStates;
}
struct HostTier;

// Kinds beside those that optimizers name ("exp_avg", ...).
inline constexpr std::string_view kParameterState = "parameter";  // the compute dtype's shard
inline constexpr std::string_view kMasterState =
    "master";  // fp32, the parameter itself, or int16 beside a bf16 one
inline constexpr std::string_view kGradientState = "gradient";  // raw sum over ranks and micro-batches

/// Elements [begin, end) of a unit, and their states.
struct StatePiece {
  int unit = 0;
  int64_t begin = 0, end = 0;
  bool operator==(const StatePiece&) const = default;
};

/// Flat tensors. Not thread safe, but that several threads may borrow different states that are in memory.
class StateStore {
  struct State;
  struct Transfer;

 public:
  /// What a borrower does with the values. Shape: nothing; the tensors have numel, dtype and device, and
  /// their memory must not be touched.
  enum class Use { Read, Write, Shape };

  /// States of one unit until it goes. The store must live longer.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) noexcept;
    ~Lease() { end(); }
    /// [numel], the memory itself, or of what is on disk a copy that is written back in the end; undefined
    /// for a kind that the unit does not have. Neither it nor views of it may be kept.
    const at::Tensor& operator[](std::string_view kind) const;
    /// Of lend_ahead(): until the values are there. Throws what kept them.
    void arrive();
    void end() noexcept;
    /// Ends it; of a passing state that is on disk nothing is written back.
    void forget() noexcept;

   private:
    friend class StateStore;
    struct Borrowed {
      State* state = nullptr;
      Use use = Use::Read;
    };
    std::vector<Borrowed> states_;
    std::vector<std::pair<std::string_view, at::Tensor>> lent_;  // by kind
    /// What has come from the disk for this lease.
    struct Fetched {
      std::vector<std::string_view> kinds;  // its names
      State* state = nullptr;
      Use use = Use::Read;
      int64_t begin = 0, numel = 0;  // of the state's elements
      at::Tensor memory = {};
      bool may_be_kept = false;  // by a transfer between ranks, which does not look at it any more
      std::shared_ptr<Transfer> whole = nullptr;  // where it is all of the state: its memory
    };
    std::vector<Fetched> fetched_;
    StateStore* store_ = nullptr;
    bool is_of_sweep_ = false, is_provisional_ = false, forgets_ = false;
  };

  StateStore();
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  /// Where states of Tier::Disk are; before the first of them. `two_places`, by unit: of its states that last
  /// every piece has two places there (lend_provisionally()); none beyond its end.
  void keep_on_disk(std::unique_ptr<tiers::DiskStates> disk, std::vector<char> two_places = {});
  /// Null where there is none.
  const tiers::DiskStates* disk() const { return disk_.get(); }

  /// Beside a device: where states of Tier::Host are; before the first that is not in the device's memory.
  /// Those and what is on disk are tensors of the CPU, whatever device create() is told.
  void keep_on_host(std::unique_ptr<HostTier> host);
  /// Null where the device is the CPU, or keeps everything.
  HostTier* host() const { return host_.get(); }

  // Each throws Usage where a unit has that kind already, Unsupported for a tier that there is not.

  /// A state of `numel` zeros that the store owns. `elements_each`: of the unit, that share one of them;
  /// pieces begin at multiples of it.
  void create(int unit, std::string_view kind, int64_t numel, const at::TensorOptions& options,
              Tier tier = Tier::Device, int64_t elements_each = 1);
  /// States of one kind that the store owns, numels[i] elements of units[i], whose values last from a lease
  /// that writes until discard(). In between their memory serves others (optim/passing_memory.h). On disk the
  /// first lease after discard() has no values, which none are read for; pieces of them are lent to read.
  /// Of one kind there may be some in memory and some on disk.
  void create_passing(std::string_view kind, std::span<const int> units, const std::vector<int64_t>& numels,
                      const at::TensorOptions& options, Tier tier = Tier::Device);
  /// The same in memory, each in some of its own: what is used up (use_up()) gives it back by itself.
  void create_brief(std::string_view kind, std::span<const int> units, const std::vector<int64_t>& numels,
                    const at::TensorOptions& options);
  /// Elements [begin, begin + numel) of the unit's state `of` under a name of their own. The two are one:
  /// they are lent together or not at all.
  void create_view(int unit, std::string_view kind, std::string_view of, int64_t begin, int64_t numel);
  /// A state in memory that is not the store's to move, 1-D and contiguous: a part of a slab that keeps its
  /// values, or of memory that other ranks read and write.
  /// `arrive`, if any, is called before they are lent, but for their shape.
  void adopt(int unit, std::string_view kind, const at::Tensor& values, std::function<void()> arrive = {});

  /// `settle` is called before that state is lent, but for its shape: whoever has it ends its lease.
  void when_lent(int unit, std::string_view kind, std::function<void()> settle);

  bool holds(int unit, std::string_view kind) const;
  bool is_on_disk(int unit, std::string_view kind) const;
  /// What create() was told; 1 for a kind that the unit does not have.
  int64_t elements_each(int unit, std::string_view kind) const;
  /// Borrows those of `kinds` that the unit has. Any number may read a state, or one write it. Throws
  /// Internal where that does not fit, or (on CPU) where someone kept a tensor after an earlier lease; for
  /// what is on disk, what its transfers throw, also those that ended earlier leases.
  Lease lend(int unit, std::span<const std::string_view> kinds, Use use);
  Lease lend(int unit, std::initializer_list<std::string_view> kinds, Use use) {
    return lend(unit, std::span(kinds.begin(), kinds.size()), use);
  }
  /// The same of some elements: tensors have [end - begin]. Those of `read_only` are lent to read, whatever
  /// the use.
  Lease lend(const StatePiece& piece, std::span<const std::string_view> kinds, Use use,
             std::span<const std::string_view> read_only = {});
  /// The same to read, of all elements, but what is on disk is only on its way: nothing of the lease is
  /// looked at before it arrives.
  Lease lend_ahead(int unit, std::span<const std::string_view> kinds);
  /// The pieces in which a sweep borrows those of `kinds` that the unit has: the whole, unless some are on
  /// disk, or beside a device on the host.
  std::vector<StatePiece> pieces_of(int unit, std::span<const std::string_view> kinds) const;
  /// Leases of these pieces and kinds come next, in this order: what is on disk is read before and written
  /// behind, with the memory of a fixed ring of buffers. Others in between are legal, and slow.
  void announce(std::span<const StatePiece> pieces, std::span<const std::string_view> kinds,
                std::span<const std::string_view> read_only = {});
  /// Of the sweep that was announced: a piece of states on disk, to write values that count only once they
  /// are accepted. Until then others borrow what was there. They must have two places.
  Lease lend_provisionally(const StatePiece& piece, std::span<const std::string_view> kinds);
  /// Whether a piece of kinds that are on disk is the next of the sweep; and whether it has been read.
  bool is_next(const StatePiece& piece, std::span<const std::string_view> kinds) const;
  bool is_there(const StatePiece& piece, std::span<const std::string_view> kinds) const;
  /// Leaves those before it as they are, if it is still to come; else does nothing and returns false.
  bool skip_to(const StatePiece& piece, std::span<const std::string_view> kinds);
  /// What was written provisionally counts now.
  void accept(const StatePiece& piece, std::span<const std::string_view> kinds);
  /// What was written provisionally and not accepted never was.
  void forget_provisional();
  /// Until what leases have written is on the disk. Throws what kept it from there.
  void flush();
  /// Passing states of this kind have no values any more. Throws Internal while one is lent.
  void discard(std::string_view kind);
  /// The same of one unit's. Its tensors must not be read from here on, whoever has kept some.
  void use_up(int unit, std::string_view kind);

  /// Of the states that it owns in a tier, or those of one kind; of passing ones as if they had values.
  int64_t owned_bytes(Tier tier = Tier::Device) const;
  int64_t owned_bytes(std::string_view kind) const;

 private:
  /// A state, or a part of it, by its name.
  struct Entry {
    State* state = nullptr;
    int64_t begin = 0, numel = 0;
  };
  State& add(int unit, std::string_view kind, const at::Tensor& values);
  Entry& add_entry(int unit, std::string_view kind);
  static std::string name_of(int unit, std::string_view kind);
  static void borrow(State& state, Use use);
  /// Numbers there of the states of these kinds that are on disk.
  std::vector<int> on_disk(int unit, std::span<const std::string_view> kinds) const;
  void put_on_disk(State& state, bool two_places);
  void create(int unit, std::string_view kind, int64_t numel, const at::TensorOptions& options, Tier tier,
              int64_t elements_each, bool passes);
  void add_to(Lease& lease, const StatePiece& piece, std::string_view kind, Use use);
  void fetch(Lease& lease, bool ahead);
  bool take_from_sweep(std::vector<Lease::Fetched>& wanted);
  void begin_fetch(Lease::Fetched& one);
  void put_back(Lease& lease) noexcept;
  void write_behind(Lease::Fetched& one);
  void finish_behind();
  void throw_failure();

  std::vector<std::unique_ptr<State>> states_;
  std::map<std::pair<int, std::string>, Entry> entries_;
  std::map<std::string, std::unique_ptr<detail::PassingMemory>, std::less<>> passing_;  // by kind
  std::unique_ptr<tiers::DiskStates> disk_;
  std::vector<char> two_places_;  // there, by unit
  std::unique_ptr<HostTier> host_;
  std::shared_ptr<Transfer> behind_;  // of a lease that ended: one at most, or their memory would add up
  std::exception_ptr failure_;        // of a lease that ended
};

}  // namespace zero

#pragma once
// The states of this rank's units: parameter shard, master, gradient's sum and what the optimizer keeps, each
// by (unit, kind). Whoever needs some borrows them for an update, a snapshot or a load and keeps nothing
// beyond, so that where they are in between is the store's affair.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zero/tier.h"

namespace zero {

// Kinds beside those that optimizers name ("exp_avg", ...).
inline constexpr std::string_view kParameterState = "parameter";  // the compute dtype's shard
inline constexpr std::string_view kMasterState =
    "master";  // fp32, the parameter itself, or int16 beside a bf16 one
inline constexpr std::string_view kGradientState = "gradient";  // raw sum over ranks and micro-batches

/// Flat tensors, those of one unit all as long. Not thread safe.
class StateStore {
  struct State;

 public:
  /// What a borrower does with the values.
  enum class Use { Read, Write };

  /// States of one unit until it goes. The store must live longer.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) noexcept;
    ~Lease() { end(); }
    /// [numel], the memory itself; undefined for a kind that the unit does not have. Neither it nor views of
    /// it may be kept.
    const at::Tensor& operator[](std::string_view kind) const;
    void end() noexcept;

   private:
    friend class StateStore;
    std::vector<std::pair<std::string_view, State*>> states_;
    std::vector<at::Tensor> lent_;
    Use use_ = Use::Read;
  };

  StateStore();
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  /// A state of `numel` zeros that the store owns. Throws Usage where the unit has that kind already,
  /// Unsupported for a tier that there is not.
  void create(int unit, std::string_view kind, int64_t numel, const at::TensorOptions& options,
              Tier tier = Tier::Device);
  /// A state in memory that others own and keep where it is, 1-D and contiguous: a part of a slab, gradients'
  /// sums.
  void adopt(int unit, std::string_view kind, const at::Tensor& values);

  bool holds(int unit, std::string_view kind) const;
  /// Borrows those of `kinds` that the unit has. Any number may read a state, or one write it. Throws
  /// Internal where that does not fit, or where someone kept a tensor after an earlier lease.
  Lease lend(int unit, std::span<const std::string_view> kinds, Use use);
  Lease lend(int unit, std::initializer_list<std::string_view> kinds, Use use) {
    return lend(unit, std::span(kinds.begin(), kinds.size()), use);
  }
  /// Of the states that it owns in a tier.
  int64_t owned_bytes(Tier tier = Tier::Device) const;

 private:
  State& add(int unit, std::string_view kind);
  State* find(int unit, std::string_view kind) const;

  std::map<std::pair<int, std::string>, std::unique_ptr<State>> states_;
};

}  // namespace zero

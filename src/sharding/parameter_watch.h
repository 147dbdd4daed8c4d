#pragma once
// What a program writes into parameters: kept to the bit where a scope modifies, refused by name elsewhere.
//
// Parameters are views of slabs. They may be written in place, by operators that count versions or through
// data(), or get other memory altogether (set_data, module.to). Outside of forward, backward and scopes,
// Residency hides what does not keep writes; here is what notices the rest.

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "sharding/sharded_model.h"

namespace zero::detail {

class ParameterWatch {
 public:
  /// `model` outlives this.
  explicit ParameterWatch(ShardedModel& model);

  /// Throws Usage, naming the first parameter that was replaced or written where that cannot be kept; it is a
  /// view of its slab again then, with a sound master. What was replaced in a scope that modifies is taken
  /// in.
  void require_views();

  /// After a scope has pinned a unit, and before it unpins it. The end takes over what was written in a scope
  /// that modifies; it throws Usage, naming parameters, for what cannot be kept, once all is in order again.
  void begin_scope(int unit, bool modifies);
  void end_scope(int unit, bool modifies);

  /// In a scope that modifies: what replaced parameters of the unit on rank `root` is their value on all
  /// ranks, to the bit of fp32; what replaced them elsewhere is dropped. Collective.
  void take_in_replaced_of(int unit, int root);

 private:
  bool is_view(int parameter, const at::Tensor& tensor) const;
  void make_views(int parameter);
  at::Tensor replacement_of(int parameter) const;
  void take_in(int parameter, const at::Tensor& value);
  void take_in_replaced(int unit);
  void adopt_written(int unit, int parameter);
  void forget_writes(int unit);
  std::vector<uint64_t> checks_of(int unit) const;
  void take_over(int unit);
  void refuse_written(int unit);

  ShardedModel& model_;
  std::vector<std::vector<int>> parameters_;    // per unit
  std::vector<std::vector<int64_t>> versions_;  // per parameter and tensor, as last seen
};

}  // namespace zero::detail

#pragma once
// Gradients of parameters that several stages use. Per micro-batch they are added as autograd adds them in
// one process, from the last stage to the first, in the parameter's type; over micro-batches in their order.

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "stages/places.h"
#include "stages/stage_parameters.h"

namespace zero::detail {

class TiedSums {
 public:
  /// `numbers`: of the tied parameters that this rank holds, by index in `tied`; -1 for others.
  TiedSums(std::vector<TiedParameter> tied, std::vector<int> numbers, at::ScalarType sum_dtype,
           Places& places);

  bool is_empty() const { return tied_.empty(); }
  /// Whether a stage must give its tied gradients before the stage before it goes back: it has no later time
  /// at which nobody waits for it.
  bool gives_early(int stage) const;
  /// A gradient that autograd gave to parameter `number`; false where it is not tied.
  bool take(int number, const at::Tensor& gradient);
  /// After the backward of weights of a stage: what take() got goes towards the first stage.
  void pass_on(int stage, int micro_batch);
  /// After the last micro-batch: the sums, by number, on all ranks that hold a parameter. Clears them.
  std::vector<std::pair<int, at::Tensor>> totals();
  void abandon();

 private:
  void add_to_total(size_t index, const at::Tensor& gradient);

  std::vector<TiedParameter> tied_;
  std::vector<int> numbers_;
  at::ScalarType sum_dtype_;
  Places& places_;
  std::vector<at::Tensor> caught_, totals_;  // by index
};

}  // namespace zero::detail

#pragma once
// What the tensor-parallel ranks of one module share: their group, how activations are cut between layers,
// and what has happened so far. And their collectives, each with the gradient that belongs to it, of any
// order. (Shoeybi et al. 2019, arXiv 1909.08053, section 3: f and g; Korthikanti et al. 2022, arXiv
// 2205.05198: their forms with sequence parallelism.)

#include <ATen/core/Tensor.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tensor/cut.h"
#include "zero/mesh.h"

namespace zero::detail {

/// A tensor that all ranks have and each reads for a part of the result, in the form in which its gradients
/// are added up. One for all readers of a tensor, so that they share one collective.
struct SharedRead {
  at::Tensor of, read;
  int64_t version = 0;
};

class TensorAxis : public std::enable_shared_from_this<TensorAxis> {
 public:
  TensorAxis(Group group, bool sequence, bool gathers_unknown)
      : group_(std::move(group)), sequence_(sequence), gathers_unknown_(gathers_unknown) {}

  const Group& group() const { return group_; }
  Place place() const { return {group_.rank(), group_.size()}; }
  bool sequence() const { return sequence_; }
  bool gathers_unknown() const { return gathers_unknown_; }

  /// Parameters count as parts of whole ones between enter() and the leave() that belongs to it.
  void enter() { ++depth_; }
  void leave();
  bool is_active() const { return depth_ > 0; }

  /// Operators that were computed of gathered tensors, with why.
  void note_gathered(const std::string& op, const std::string& why) { gathered_.emplace(op, why); }
  const std::map<std::string, std::string>& gathered() const { return gathered_; }

  /// The form of x that parts of a result are computed from: its gradients, partial sums, are added up over
  /// the ranks (Megatron's f).
  at::Tensor read_by_parts(const at::Tensor& x, const std::string& what);
  /// The sum of all ranks' x, of which all compute the same afterwards (Megatron's g).
  at::Tensor sum(const at::Tensor& partial, const std::string& what);
  /// The whole of a tensor whose parts the ranks hold. `for_parts`: parts of a result are computed from it,
  /// whose gradients are added up; otherwise all ranks compute the same from it.
  at::Tensor gather(const at::Tensor& local, const Cut& cut, bool for_parts);
  /// This rank's part of the sum of all ranks' x.
  at::Tensor scatter(const at::Tensor& partial, const Cut& cut);
  /// Elementwise maximum over the ranks; no gradient.
  at::Tensor maximum(const at::Tensor& x, const std::string& what);

 private:
  template <class Make>
  at::Tensor read_once(const at::Tensor& x, Make make);

  Group group_;
  bool sequence_, gathers_unknown_;
  std::atomic<int> depth_ = 0;
  std::map<std::string, std::string> gathered_;
  std::deque<SharedRead> recent_;
};

/// Its forward, without a graph, and its gradient, from the output's.
using TensorMap = std::function<at::Tensor(const at::Tensor&)>;
at::Tensor with_gradient(const at::Tensor& x, const TensorMap& forward, TensorMap gradient);

}  // namespace zero::detail

#pragma once
// One call of a module's forward: for its shapes, or for a stage's part of it.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "seam/above_autograd.h"
#include "seam/storage_access.h"
#include "suspend/shapes.h"
#include "suspend/sources.h"
#include "suspend/trace.h"

namespace zero::detail {

/// What the passes of one module share.
struct ForwardShapes {
  Sources sources;
  at::Device device;
  std::optional<at::ScalarType> parameter_dtype = {}, buffer_dtype = {};  // of floating ones; none: their own
  Shapes shapes = {};
};

/// Hollow twins of sources, and which operators a pass is inside of.
class ForwardPass : public OperatorTaker {
 protected:
  explicit ForwardPass(ForwardShapes& shared) : shared_(shared) {}

  /// Computes shapes alone: sources and lazy tensors among the arguments, and where `all_floating` whatever
  /// might be another stage's, become hollow first.
  void compute_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack, bool all_floating);
  /// Computes the operator.
  static void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  /// Of an operator inside one whose shapes are computed; false: this one is called by the module.
  bool take_inside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  at::Tensor twin_of(const at::Tensor& tensor);

  ForwardShapes& shared_;

 private:
  std::string inside_;               // the module's operator; "": none
  std::map<int, at::Tensor> twins_;  // by source
};

/// Records a forward. All tensors that parameters lead to are hollow in it.
class TracingPass : public ForwardPass {
 public:
  explicit TracingPass(ForwardShapes& shared);
  void take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override;
  /// Of a forward that gave `result`.
  Trace finish(const at::Tensor& result);

 private:
  bool is_bound(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Trace::Operator& record);
  void note_writes(const c10::OperatorHandle& op, const torch::jit::Stack& stack, bool is_bound);
  void note_values(const torch::jit::Stack& stack, size_t base, Trace::Operator& record);
  int storage_of(const at::Tensor& hollow, int made_by);

  Trace trace_;
  bool records_ = false;
  std::unordered_map<const c10::TensorImpl*, int> value_of_;
  std::unordered_map<const StorageTag*, int> storage_of_;
  std::vector<at::Tensor> kept_;  // so that no address is used twice
};

/// What leaves a forward: no std::exception, so that a module that catches those lets it through.
struct SuspendedForwardLeft {};

/// Computes one stage of a forward that has been traced.
class StagePass : public ForwardPass {
 public:
  /// `incoming`: values of `begin.crossing`. `end`: where the next stage begins; null: this one is the last.
  /// `goes_on`: to the forward's end, for the random numbers that it draws.
  StagePass(ForwardShapes& shared, const Trace& trace, const StageCut& begin, const StageCut* end,
            const std::vector<at::Tensor>& incoming, bool goes_on);
  void take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override;
  /// What crosses to the next stage; after the forward. Throws Usage where it did not come that far.
  std::vector<at::Tensor> outgoing();

 private:
  void verify(const c10::OperatorHandle& op, int index) const;
  void compute_own(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack,
                   int index);
  void keep_values(const torch::jit::Stack& stack, size_t base, int index);
  void fill();

  const Trace& trace_;
  const StageCut& begin_;
  const StageCut* end_;
  const std::vector<at::Tensor>& incoming_;
  bool goes_on_, left_ = false;
  int next_ = 0;
  std::map<int, at::Tensor> crossing_;  // by value: what this stage takes, and what it gives on
};

}  // namespace zero::detail

#pragma once
// Tensors on their way between neighbours of a pipeline. Their number, shapes and types travel first, so that
// every micro-batch may have its own.

#include <ATen/core/Tensor.h>

#include <list>
#include <string>
#include <vector>

#include "stages/held_tensor.h"
#include "zero/mesh.h"

namespace zero::detail {

/// What one message is about: the same on both sides.
struct MessageName {
  enum class Kind { Activations, Gradients, Tied, Totals, Result } kind;
  int stage;  // that it comes from
  int micro_batch;
};

class Messages {
 public:
  static constexpr int kMostTensors = 12, kMostDims = 8, kMostBlocks = 8;

  /// Names have stages and micro-batches below these.
  Messages(Group pipeline, at::Device device, int stages, int micro_batches);

  /// Which of the tensors need a gradient goes with them. Undefined ones arrive undefined. Returns at once;
  /// nobody may write the tensors before they have been taken, which is by action `taken_at` of the
  /// receiver's. Throws Unsupported for what does not fit a message.
  void send(const std::vector<HeldTensor>& tensors, int to, const MessageName& name, int taken_at);
  /// Leaves, cut as they were, of which those need a gradient that did at the sender's. The sender's action
  /// `made_at` made them: what it took before is let go of.
  std::vector<HeldTensor> receive(int from, const MessageName& name, int made_at);
  /// Waits until all that was sent has been taken.
  void finish();
  /// After an error: waits for nothing.
  void abandon() { sent_.clear(); }

 private:
  struct Sent {
    int to = 0, taken_at = 0;
    std::vector<Work> works;
    std::vector<at::Tensor> tensors;
  };
  int tag_of(const MessageName& name) const;
  void let_go(int to, int before);

  Group pipeline_;
  at::Device device_;
  int stages_, micro_batches_;
  std::list<Sent> sent_;
};

}  // namespace zero::detail

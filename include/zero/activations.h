#pragma once
// What a micro-batch needs beside the states of a rank, from shapes alone: what forward keeps for backward,
// and what the loss takes. Counted from the operators of our models (src/models) on CPU; tests hold it
// against the allocator's figures.

#include <cstdint>

#include "zero/dtype.h"
#include "zero/model_shape.h"
#include "zero/plan.h"
#include "zero/recompute_policy.h"

namespace zero {

/// The ranks that share each layer (tensor_parallel.h), of which a rank keeps its part.
struct LayerShare {
  int ranks = 1;
  bool sequence = false;   // what stands between the parts of a layer is cut along the sequence
  bool vocabulary = true;  // embedding, head and loss are cut, too
};

/// Bytes of one rank and micro-batch, with operators of ours (cpu_operators.h); LibTorch's keep up to 6%
/// more.
struct ActivationBytes {
  int64_t kept = 0;   // by the layers, from their forward to their backward
  int64_t loss = 0;   // beside them when backward begins: logits, and the gradient of the head's weight
  int64_t again = 0;  // beside them while backward computes a layer again
};

/// `dtype`: of parameters and activations. Where parameters are frozen less is kept. Of a recomputed layer
/// its input is kept; an automatic policy is taken to use all of its memory. Of `share`, the rank with the
/// largest part. Throws Config for a shape that makes no sense, and sizes below 1 or too large to count.
ActivationBytes activation_bytes(const ModelShape& shape, int64_t batch, int64_t sequence, Dtype dtype,
                                 const RecomputePolicy& recompute = {}, const LayerShare& share = {});

/// A rank's most, without common parameters of other ranks: when backward begins there are activations and,
/// but for sums over earlier micro-batches, no gradients; when it ends there are all summed gradients and the
/// largest of autograd's. In between the one goes as the other comes.
int64_t peak_bytes(const Plan& plan, const ActivationBytes& activations);

}  // namespace zero

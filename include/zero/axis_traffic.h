#pragma once
// What a rank sends along the axes "tp" and "pp": what ranks that share layers add up and gather (Shoeybi et
// al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, arXiv 2205.05198), and activations between stages.

#include <cstdint>

#include "zero/activations.h"
#include "zero/dtype.h"
#include "zero/model_shape.h"

namespace zero {

/// Of one kind of operation, as a group counts it (Traffic of mesh.h): an all-reduce counts its elements
/// twice.
struct Moved {
  int64_t calls = 0, elements = 0, bytes = 0;
  void add(int64_t calls_made, int64_t elements_each, int64_t item_bytes) {
    calls += calls_made;
    elements += calls_made * elements_each;
    bytes += calls_made * elements_each * item_bytes;
  }
};

struct TensorTraffic {
  Moved all_reduce, all_gather, reduce_scatter;
  int64_t bytes() const { return all_reduce.bytes + all_gather.bytes + reduce_scatter.bytes; }
};

/// Which parts of a model a rank has.
struct HeldParts {
  int64_t blocks = 0;
  bool has_first = true, has_last = true;  // the embedding; the head and the loss
};

/// Along "tp", of the forward and backward of one micro-batch of which all parameters are trained. A layer
/// has four all-reduces of its activations, two forward and two backward; under sequence parallelism a gather
/// and a scatter for each, and sums of the gradients of what parts of the sequence read. Without a cut
/// vocabulary under sequence parallelism the ends are taken to be whole. Throws Config for sizes below 1.
TensorTraffic tensor_traffic(const ModelShape& shape, int64_t batch, int64_t sequence, Dtype dtype,
                             const LayerShare& share, const HeldParts& held);

/// Of so many micro-batches.
TensorTraffic times(TensorTraffic traffic, int64_t count);

/// Along "pp", what a rank sends in a step: of every micro-batch its stages' activations to the next stage
/// and their gradients to the one before, where these are on other ranks. Under sequence parallelism of its
/// part.
Moved pipeline_messages(const ModelShape& shape, int64_t batch, int64_t sequence, Dtype dtype,
                        const LayerShare& share, int64_t neighbours, int64_t micro_batches);

}  // namespace zero

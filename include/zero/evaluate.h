#pragma once
// Loss and perplexity of a model on a token file.

#include <torch/types.h>

#include <cstdint>
#include <functional>

#include "zero/mesh.h"
#include "zero/token_file.h"

namespace zero {

struct EvaluateOptions {
  int64_t sequence_length = 0;  // tokens of a sample
  int64_t batch_size = 1;       // samples a rank takes at a time
  int64_t batches = 0;          // that each rank takes at most; 0: the whole file
};

struct EvalResult {
  double loss = 0;        // mean over all predicted tokens, in nats
  double perplexity = 0;  // exp(loss); infinite where that overflows
  int64_t tokens = 0;     // predicted, over all ranks
  int64_t samples = 0;
};

/// tokens, targets [samples, sequence] int64 on the mesh's device -> mean loss over all targets, a scalar.
using LossFunction = std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& targets)>;

/// Mean loss over the file's samples (see Sampler; tokens behind the last whole sample are left out), each
/// taken once by one rank. Runs under NoGradGuard; the caller puts the model into eval(). Collective over the
/// mesh: every rank calls `loss` equally often, also with nothing left to evaluate, so `loss` may be
/// collective itself. The result is the same on every rank. Throws Config for a file that is too short.
EvalResult evaluate(const LossFunction& loss, const TokenFile& file, const EvaluateOptions& options,
                    const Mesh& mesh);

}  // namespace zero

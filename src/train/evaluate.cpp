#include "zero/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "train/batches.h"
#include "zero/error.h"
#include "zero/sampler.h"

namespace zero {

EvalResult evaluate(const LossFunction& loss, const TokenFile& file, const EvaluateOptions& options,
                    const Mesh& mesh) {
  require(file.size() > options.sequence_length, ErrorKind::Config, file.path().string(),
          "it holds " + std::to_string(file.size()) + " tokens, and one sample needs " +
              std::to_string(options.sequence_length + 1),
          "give more text");
  const at::NoGradGuard no_grad;
  const Sampler sampler(file.size(), {.sequence_length = options.sequence_length, .shuffle = false});
  const Group dp = mesh.group("dp");
  int64_t batches = sampler.evaluation_batches(dp.size(), options.batch_size);
  if (options.batches > 0) batches = std::min(batches, options.batches);

  double total = 0;
  int64_t samples = 0;
  for (int64_t index = 0; index < batches; ++index) {
    const auto mine = sampler.evaluation_batch(index, dp.rank(), dp.size(), options.batch_size);
    std::vector<int64_t> first_tokens;
    first_tokens.reserve(mine.size() + 1);
    for (const int64_t sample : mine) first_tokens.push_back(sampler.first_token(sample));
    // A rank that has run out still takes part in the others' collectives, with a sample that counts nothing.
    if (mine.empty()) first_tokens.push_back(0);
    const auto batch = training::read_batch(file, first_tokens, options.sequence_length, mesh.device());
    const double value = loss(batch.tokens, batch.targets).item<double>();
    if (!mine.empty()) total += value * static_cast<double>(mine.size());
    samples += static_cast<int64_t>(mine.size());
  }

  at::Tensor sums = at::zeros({2}, at::kDouble);
  sums[0] = total;
  sums[1] = static_cast<double>(samples);
  sums = sums.to(mesh.device());
  dp.all_reduce(sums, Group::Reduce::Sum, "evaluation").wait();
  sums = sums.cpu();
  EvalResult result;
  result.samples = static_cast<int64_t>(sums[1].item<double>());
  result.tokens = result.samples * options.sequence_length;
  result.loss = sums[0].item<double>() / sums[1].item<double>();
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace zero

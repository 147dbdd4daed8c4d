#pragma once
// The optimizers with an update rule of our own: from hyper-parameters to scalars, and the scalars' two
// executions.

#include <ATen/core/Tensor.h>

#include <variant>

#include "optim/kernels/kernels.h"
#include "zero/optimizer.h"

namespace zero {

using RuleSpec = std::variant<AdamW, Adam, SGD, Lion>;

/// What one parameter's update depends on besides the spec.
struct Rates {
  double lr = 0;
  double weight_decay = 0;
  double gradient_scale = 1;
  int64_t step = 1;  // this parameter's, from 1
  std::optional<Betas> betas;
};

using Scalars = std::variant<kernels::AdamScalars, kernels::SgdScalars, kernels::LionScalars>;

Scalars scalars_of(const RuleSpec& spec, const Rates& rates);
double weight_decay_of(const RuleSpec& spec);
bool has_betas(const RuleSpec& spec);
/// Names of the fp32 state tensors in the order of Buffers::first, second: none, one or two.
std::vector<std::string> state_names(const RuleSpec& spec);

/// `count` elements by CPU kernels.
void update(const kernels::KernelSet& kernels, const kernels::Buffers& buffers, const Scalars& scalars,
            int64_t count);

/// The same piece of every tensor of a shard.
struct Piece {
  at::Tensor master, gradient;  // master: fp32, or int16 beside a bf16 parameter
  at::Tensor parameter;         // undefined: no copy
  at::Tensor first, second;
};
/// The kernels' operations in their order as at:: operators, for any device; equal to fp32 rounding (at:: may
/// fuse multiply and add).
void update(const Piece& piece, const Scalars& scalars);

}  // namespace zero

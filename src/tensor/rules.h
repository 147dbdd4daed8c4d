#pragma once
// What ranks compute of an operator whose tensors they hold parts of, one function a family. Each throws
// NoRule where no rank can compute its part alone.

#include "tensor/call.h"

namespace zero::detail::rules {

// rules_pointwise.cpp
void pointwise(Call& call);
void dropout(Call& call);
/// x with dropout, whose mask is this rank's part of the one that a single process draws.
at::Tensor with_dropout(const at::Tensor& local, const Cut& cut, Place place, double p);

// rules_views.cpp
void view(Call& call);
void rearrange(Call& call);
void repeat_interleave(Call& call);

// rules_slices.cpp
void slice(Call& call);
void join(Call& call);

// rules_reductions.cpp
void reduce(Call& call);
void normalise(Call& call);

// rules_products.cpp
void matmul(Call& call);
void addmm(Call& call);
void linear(Call& call);

// rules_attention.cpp
void attention(Call& call);

// rules_vocabulary.cpp
void embedding(Call& call);
void cross_entropy(Call& call);

}  // namespace zero::detail::rules

#pragma once
// What the engine asks of a group beyond the public collectives: sums into several tensors at a time, and
// tensors in memory that ranks share. The rules of Group's collectives hold here too.

#include <torch/types.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "zero/mesh.h"

namespace zero::detail {

/// One of several outputs of a sum: a contiguous tensor [m] fp32 that is replaced by the sum or added to.
/// `own`, if defined, [m] contiguous of the input's dtype and apart from `out`, takes the place of what this
/// rank itself adds to this part: those elements of the input are not read.
struct ReducePart {
  at::Tensor out;
  bool accumulate = false;
  at::Tensor own = {};
};

/// Group::reduce_scatter into several tensors of n elements together, one after the other; `in` [size * n].
Work reduce_scatter(const Group& group, std::vector<ReducePart> outs, at::Tensor in, std::string_view what);

/// outs, n elements together, (+)= sum over ranks of their in [n], fp32 in rank order; every rank adds up
/// everything itself, which is the shortest way for few ranks in shared memory. Throws Usage unless the group
/// shares memory.
Work all_reduce(const Group& group, std::vector<ReducePart> outs, at::Tensor in, std::string_view what);

/// A tensor [numel] that the group's collectives move fastest as their input: other ranks read it in place
/// where memory is shared, until Work::wait() has returned. Not zeroed. Elsewhere an ordinary tensor.
at::Tensor input_tensor(const Group& group, int64_t numel, at::ScalarType dtype);

/// One tensor [numel] for all ranks of the group, zeros at first: what one writes, all see, and who writes
/// when is the caller's affair. An all_gather into it, of a rank's own part of it, moves nothing: once its
/// outputs are there, all ranks have written; others may read that part until Work::wait() has returned.
/// Collective, blocks. Throws Usage unless the group shares memory.
at::Tensor common_tensor(const Group& group, int64_t numel, at::ScalarType dtype, std::string_view what);

}  // namespace zero::detail

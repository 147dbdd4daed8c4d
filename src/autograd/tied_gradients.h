#pragma once
// The gradient of a weight that is an embedding and something else too, mostly the output layer. Autograd
// makes two matrices of the vocabulary's size and adds them up in a third. Here the embedding's gradient
// stays rows, which are added to the other matrix in place: the same bits, without a fill, a sum and two
// matrices.

#include <ATen/core/Tensor.h>

#include <vector>

namespace zero::detail {

/// Prepares the graph of `outputs` for one backward that makes no graph of its own. Concerns weights on the
/// CPU that an engine holds: the rows of those that two operators use, one of them a lookup, and in-place
/// sums for all that several operators use.
void prepare_tied_gradients(const std::vector<at::Tensor>& outputs);

}  // namespace zero::detail

#pragma once
// Random operators of the tape, drawn in part. PyTorch's CPU generator is a Mersenne Twister whose numbers
// fill a tensor in order, so what an element becomes depends on its place in the stream only: ranks draw what
// they keep and skip the rest, a hundred times faster, and the values are those of eager construction
// whatever the number of ranks.

#include <ATen/core/MT19937RNGEngine.h>

#include <optional>

#include "lazy/lazy_tape.h"

namespace zero::detail {

/// Moves the stream on by `numbers` (>= 0, of 32 bits) as if they had been drawn.
void skip_numbers(at::mt19937& stream, int64_t numbers);

/// A call of normal_ or uniform_ on a contiguous fp32 tensor with the default generator.
struct Draw {
  enum class Kind { Normal, Uniform } kind;
  double first, second;  // mean and deviation, or from and to
  int64_t numel;
  /// How many numbers the whole call takes.
  int64_t numbers() const;
};

/// nullopt where a call takes another number of numbers, or they do not fill the tensor in order. `arguments`
/// are the call's, of which the first, `target`, may be empty.
std::optional<Draw> draw_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                            const TensorRef& target);

/// Gives elements [begin, end) of `flat` (fp32 [numel], contiguous) what the whole call would, and leaves the
/// default generator where the whole call would. Other elements may change. Uses the compute threads.
void draw_part(const Draw& draw, const at::Tensor& flat, int64_t begin, int64_t end);

}  // namespace zero::detail

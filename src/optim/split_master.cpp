#include "optim/split_master.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compute/parallel.h"
#include "optim/kernels/kernels.h"

namespace zero {
namespace {

// Elements at a time: what lies between stays in the caches and takes no memory worth counting.
constexpr int64_t kPieceNumel = 1 << 18;

template <class Work>
void in_pieces(int64_t numel, Work work) {
  for (int64_t begin = 0; begin < numel; begin += kPieceNumel)
    work(begin, std::min(kPieceNumel, numel - begin));
}

// The bits of an fp32 value with this upper half and zeros below.
at::Tensor upper_bits(const at::Tensor& parameter) {
  return parameter.view(at::kShort).to(at::kInt).bitwise_left_shift_(16);
}

constexpr int64_t kSplitGrain = 1 << 16;  // elements that are worth a thread

uint16_t* halves_of(const at::Tensor& parameter) {
  return static_cast<uint16_t*>(parameter.mutable_data_ptr());
}

}  // namespace

void join_master(const at::Tensor& parameter, const at::Tensor& remainder, const at::Tensor& out) {
  if (out.is_cpu() && parameter.is_cpu() && remainder.is_cpu())
    return parallel_over(out, kSplitGrain, [&](int64_t begin, int64_t end) {
      kernels::best_kernels().join(halves_of(parameter) + begin,
                                   remainder.const_data_ptr<kernels::Remainder>() + begin,
                                   out.mutable_data_ptr<float>() + begin, end - begin);
    });
  in_pieces(out.numel(), [&](int64_t begin, int64_t count) {
    const at::Tensor bits = upper_bits(parameter.narrow(0, begin, count));
    const at::Tensor rest = remainder.narrow(0, begin, count).to(bits.device());
    out.narrow(0, begin, count).view(at::kInt).copy_(bits.add_(rest));
  });
}

void split_master(const at::Tensor& values, const at::Tensor& parameter, const at::Tensor& remainder) {
  if (values.is_cpu() && parameter.is_cpu() && remainder.is_cpu())
    return parallel_over(values, kSplitGrain, [&](int64_t begin, int64_t end) {
      kernels::best_kernels().split(values.const_data_ptr<float>() + begin, halves_of(parameter) + begin,
                                    remainder.mutable_data_ptr<kernels::Remainder>() + begin, end - begin);
    });
  in_pieces(values.numel(), [&](int64_t begin, int64_t count) {
    const at::Tensor piece = values.narrow(0, begin, count).to(parameter.device()),
                     half = parameter.narrow(0, begin, count);
    at::Tensor(half).copy_(piece);
    at::Tensor rest = piece.view(at::kInt) - upper_bits(half);
    // A NaN's rest means nothing.
    rest.masked_fill_(piece.isnan(), 0).clamp_max_(0x7fff);
    remainder.narrow(0, begin, count).copy_(rest);
  });
}

}  // namespace zero

#include <algorithm>
#include <vector>

#include "base/processor.h"
#include "operators/attention/scratch.h"
#include "operators/attention/variants.h"

namespace zero::attention {
namespace {

std::vector<const Kernels*> found() {
  std::vector<const Kernels*> result{&kPortable};
#if defined(__x86_64__)
  if (runs_avx2()) result.push_back(&kAvx2);
  if (runs_avx512()) result.push_back(&kAvx512);
  if (runs_amx()) result.push_back(&kAmx);
#endif
  return result;
}

template <class Parts>
int64_t numel_of(const Sizes& sizes) {
  Scratch count(nullptr);
  const Parts parts(count, sizes);
  return count.numel();
}

}  // namespace

std::span<const Kernels* const> available_kernels() {
  static const std::vector<const Kernels*> kernels = found();
  return kernels;
}

const Kernels& best_kernels() { return *available_kernels().back(); }

int64_t forward_scratch_numel(const Shape& shape) {
  const Sizes sizes(shape);
  return std::max(numel_of<ForwardParts>(sizes), shape.half ? numel_of<TileForwardParts>(sizes) : 0);
}

int64_t backward_scratch_numel(const Shape& shape) {
  const Sizes sizes(shape);
  return std::max(numel_of<BackwardParts>(sizes), shape.half ? numel_of<TileBackwardParts>(sizes) : 0);
}

}  // namespace zero::attention

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
#endif
  return result;
}

int64_t sum_of_parts(std::initializer_list<int64_t> parts) {
  int64_t sum = 0;
  for (const int64_t numel : parts) sum += Scratch::part_numel(numel);
  return sum;
}

}  // namespace

std::span<const Kernels* const> available_kernels() {
  static const std::vector<const Kernels*> kernels = found();
  return kernels;
}

const Kernels& best_kernels() { return *available_kernels().back(); }

int64_t forward_scratch_numel(const Shape& shape) {
  const Sizes sizes(shape);
  const int64_t whole = sizes.keys * sizes.row, block = kBlock * sizes.row, scores = kBlock * sizes.keys;
  return sum_of_parts({whole, whole, block, scores, block});
}

int64_t backward_scratch_numel(const Shape& shape) {
  const Sizes sizes(shape);
  const int64_t whole = sizes.keys * sizes.row, block = kBlock * sizes.row, scores = kBlock * sizes.keys;
  return sum_of_parts({whole, whole, whole, whole, whole, block, block, block, scores, scores});
}

}  // namespace zero::attention

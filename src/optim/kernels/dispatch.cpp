// Which kernels this processor runs. Asked once, at run time.
#include <array>

#include "base/processor.h"
#include "optim/kernels/variants.h"

namespace zero::kernels {
namespace {

struct Available {
  std::array<const KernelSet*, 3> sets{};
  size_t count = 0;

  void add(const KernelSet* set) {
    if (set) sets[count++] = set;
  }
  Available() {
    add(reference_kernels());
    if (runs_avx2()) add(avx2_kernels());
    if (runs_avx512()) add(avx512_kernels());
  }
};

constexpr int64_t size_of(Element type) {
  switch (type) {
    case Element::none:
      return 0;
    case Element::f32:
      return 4;
    case Element::bf16:
    case Element::f16:
      return 2;
  }
  return 0;
}

}  // namespace

std::span<const KernelSet* const> available_kernels() {
  static const Available available;
  return {available.sets.data(), available.count};
}

const KernelSet& best_kernels() { return *available_kernels().back(); }

Buffers advance(Buffers buffers, int64_t count) {
  if (buffers.master) buffers.master += count;
  if (buffers.remainder) buffers.remainder += count;
  buffers.gradient = static_cast<const char*>(buffers.gradient) + count * size_of(buffers.gradient_type);
  if (buffers.parameter) {
    const Element type = buffers.number >= 0 ? Element::bf16 : buffers.parameter_type;
    buffers.parameter = static_cast<char*>(buffers.parameter) + count * size_of(type);
  }
  if (buffers.first) buffers.first += count;
  if (buffers.second) buffers.second += count;
  if (buffers.number >= 0) buffers.number += count;
  return buffers;
}

}  // namespace zero::kernels

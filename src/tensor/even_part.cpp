#include "tensor/even_part.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace zero::detail {

std::optional<KeptPart> even_part(const at::Tensor& tensor, const std::shared_ptr<TensorAxis>& axis) {
  const Place place = axis->place();
  const int64_t numel = tensor.numel();
  if (!tensor.has_storage() || tensor.layout() != at::kStrided || numel < place.ranks ||
      !tensor.is_non_overlapping_and_dense())
    return std::nullopt;
  const at::NoGradGuard no_grad;
  const int64_t share = (numel + place.ranks - 1) / place.ranks;
  const int64_t begin = std::min(numel, share * place.rank), count = std::min(share, numel - begin);
  KeptPart kept{.part = at::zeros({share}, tensor.options().requires_grad(false)), .whole = {}};
  kept.part.narrow(0, 0, count)
      .copy_(tensor.detach().as_strided({count}, {1}, tensor.storage_offset() + begin));
  kept.whole = [axis, sizes = tensor.sizes().vec(), strides = tensor.strides().vec(),
                ranks = place.ranks](const at::Tensor& part) {
    const at::NoGradGuard own;
    const at::Tensor all = at::empty({ranks * part.numel()}, part.options());
    axis->group().all_gather(all, part, "input of a recomputed block").wait();
    return all.as_strided(sizes, strides);
  };
  return kept;
}

}  // namespace zero::detail

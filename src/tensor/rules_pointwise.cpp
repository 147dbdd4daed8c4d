// Elementwise operators, and dropout.

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <vector>

#include "tensor/rules.h"

namespace zero::detail::rules {
namespace {

// The cut of all operands that have one, its dim counted from the back as broadcasting does.
struct CommonCut {
  Cut cut;
  int64_t from_back = 0;
  int64_t dims = 0;  // of the result
};

CommonCut common_cut(const Call& call) {
  CommonCut common;
  for (size_t i = 0; i < call.count(); ++i) {
    const Value value = call.value(i);
    if (!value.tensor.defined()) continue;
    common.dims = std::max(common.dims, value.tensor.dim());
    if (!value.cut) continue;
    const int64_t from_back = value.cut.dim - value.tensor.dim();
    if (common.cut &&
        (from_back != common.from_back || !value.cut.same_blocks(common.cut, call.place().ranks)))
      call.no_rule(value.cut, "it combines two ways of cutting:");
    common.cut = value.cut;
    common.from_back = from_back;
  }
  return common;
}

}  // namespace

void pointwise(Call& call) {
  const CommonCut common = common_cut(call);
  const bool in_place = call.writes(0);
  if (in_place && !call.value(0).cut) call.no_rule(common.cut, "it would write to a whole tensor");
  const c10::IValue self = call.argument(0);
  for (size_t i = 0; i < call.count(); ++i) {
    const Value value = call.value(i);
    if (!value.tensor.defined()) continue;
    const int64_t dim = value.tensor.dim() + common.from_back;
    if (value.cut)
      call.argument(i) = value.tensor;
    else if (dim >= 0 && value.tensor.size(dim) > 1)
      call.argument(i) = call.part(value.tensor, dim, common.cut);
    else
      call.argument(i) = call.read_by_parts(value.tensor);
  }
  if (in_place) {
    call.run();
    renew_history(self.toTensor());
    return call.finish_with(self);
  }
  Cut cut = common.cut;
  cut.dim = common.dims + common.from_back;
  call.run(cut);
}

at::Tensor with_dropout(const at::Tensor& local, const Cut& cut, Place place, double p) {
  // LibTorch's mask lies in memory as the tensor does, and is drawn in that order.
  std::vector<int64_t> sizes = local.sizes().vec();
  sizes[cut.dim] = cut.global_size();
  const at::Tensor whole = wrapped(local.detach(), cut, nullptr);
  at::Tensor mask = at::empty_strided(sizes, whole.strides(), local.options());
  mask.bernoulli_(1 - p);
  // As LibTorch divides: by zero nothing is kept, and nothing is what comes out.
  if (p < 1) mask.div_(1 - p);
  return local * part_of(mask, cut, place);
}

void dropout(Call& call) {
  const Value x = call.value(0);
  const double p = call.argument("p").toDouble();
  if (p > 0 && call.argument("train").toBool())
    return call.finish(Value{with_dropout(x.tensor, x.cut, call.place(), p), x.cut, call.axis()});
  call.argument(0) = x.tensor;
  call.run(x.cut);
}

}  // namespace zero::detail::rules

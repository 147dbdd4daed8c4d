// Scaled dot-product attention, by heads.

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>

#include "tensor/rules.h"

namespace zero::detail::rules {
namespace {

struct Heads {
  at::Tensor queries, keys, values, mask;  // this rank's
  Cut cut;
};

// Whether each rank has the keys of all its queries, and no others.
bool goes_with(const Cut& queries, Cut side, int ranks) {
  const int64_t each = queries.global_size() / side.global_size();
  for (Block& block : side.blocks) block.size *= each;
  return queries.same_blocks(side, ranks);
}

// Keys or values of this rank's queries. Where ranks outnumber the heads, all have all of them, or all of a
// part of the sequence.
at::Tensor of_own_heads(const Call& call, const Value& queries, const Value& side) {
  const int64_t dim = queries.cut.dim, heads = queries.cut.global_size();
  if (side.cut && side.cut.dim == dim && goes_with(queries.cut, side.cut, call.place().ranks))
    return side.tensor;
  at::Tensor all = side.cut ? call.gathered(side, /*for_parts=*/true) : call.read_by_parts(side.tensor);
  if (all.dim() != queries.tensor.dim() || heads % all.size(dim) != 0)
    call.no_rule(queries.cut, "its keys have other heads than");
  if (all.size(dim) != heads) all = all.repeat_interleave(heads / all.size(dim), dim);
  return part_of(all, {dim, queries.cut.blocks, queries.cut.origin}, call.place());
}

at::Tensor own_mask(const Call& call, const Value& mask, const Value& queries) {
  if (!mask.tensor.defined() || mask.cut) return mask.tensor;
  const int64_t dim = mask.tensor.dim() + queries.cut.dim - queries.tensor.dim();
  return dim >= 0 && mask.tensor.size(dim) > 1 ? call.part(mask.tensor, dim, queries.cut)
                                               : call.read_by_parts(mask.tensor);
}

// What LibTorch computes on CPU where there is a dropout, with this rank's part of its mask.
at::Tensor with_own_dropout(const Call& call, const Heads& own, double p) {
  at::Tensor keys = own.keys, values = own.values;
  const int64_t each = own.queries.size(own.cut.dim) / std::max<int64_t>(1, keys.size(own.cut.dim));
  if (each > 1) {
    keys = keys.repeat_interleave(each, own.cut.dim);
    values = values.repeat_interleave(each, own.cut.dim);
  }
  const double width = static_cast<double>(own.queries.size(-1));
  const double scale = call.has("scale") ? call.argument("scale").toDouble() : 1 / std::sqrt(width);
  at::Tensor scores = at::matmul(own.queries * std::sqrt(scale), keys.transpose(-2, -1) * std::sqrt(scale));
  at::Tensor mask = own.mask;
  if (call.argument("is_causal").toBool())
    mask = at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).tril();
  if (mask.defined())
    scores = mask.scalar_type() == at::kBool
                 ? scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity())
                 : scores + mask;
  return at::matmul(with_dropout(at::softmax(scores, -1), own.cut, call.place(), p), values);
}

}  // namespace

void attention(Call& call) {
  const Value queries = call.value(0), keys = call.value(1), values = call.value(2);
  const int64_t dims = queries.tensor.dim();
  if (!queries.cut || queries.cut.dim >= dims - 2)
    call.no_rule(queries.cut ? queries.cut
                 : keys.cut  ? keys.cut
                             : values.cut,
                 "it does not work by heads, but by");
  Heads own{of_own_heads(call, queries, queries), of_own_heads(call, queries, keys),
            of_own_heads(call, queries, values), own_mask(call, call.value(3), queries), queries.cut};
  const double p = call.argument("dropout_p").toDouble();
  if (p > 0) return call.finish(Value{with_own_dropout(call, own, p), queries.cut, call.axis()});
  call.argument(0) = own.queries;
  call.argument(1) = own.keys;
  call.argument(2) = own.values;
  if (own.mask.defined()) call.argument(3) = own.mask;
  call.run(queries.cut);
}

}  // namespace zero::detail::rules

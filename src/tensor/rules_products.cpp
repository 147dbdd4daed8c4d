// Matrix products: by columns each rank makes its part of the result, by rows a partial sum (Shoeybi et al.
// 2019, arXiv 1909.08053, section 3).

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include <algorithm>

#include "tensor/rules.h"

namespace zero::detail::rules {
namespace {

Value product(const Call& call, const Value& a, const Value& b);

// The dim that is summed over is cut: each rank has a partial sum.
Value inner_product(const Call& call, const Value& a, const Value& b) {
  const int64_t a_dims = a.tensor.dim(), b_dims = b.tensor.dim();
  const bool a_inner = a.cut && a.cut.dim == a_dims - 1, b_inner = b.cut && b.cut.dim == b_dims - 2;
  const Cut& cut = a_inner ? a.cut : b.cut;
  if (a_inner && b.cut && !(b_inner && b.cut.same_blocks(a.cut, call.place().ranks)))
    return product(call, {call.gathered(a, false), {}, a.axis}, b);
  if (b_inner && a.cut && !a_inner) return product(call, {call.gathered(a, false), {}, a.axis}, b);
  const at::Tensor x = a_inner ? a.tensor : call.part(a.tensor, a_dims - 1, cut);
  const at::Tensor y = b_inner ? b.tensor : call.part(b.tensor, b_dims - 2, cut);
  return call.summed(at::matmul(x, y), b_inner ? b.cut.origin : a.cut.origin);
}

// A batch dim is cut.
Value batch_product(const Call& call, const Value& a, const Value& b) {
  const int64_t from_back = a.cut ? a.cut.dim - a.tensor.dim() : b.cut.dim - b.tensor.dim();
  const Cut& like = a.cut ? a.cut : b.cut;
  if (a.cut && b.cut &&
      (b.cut.dim - b.tensor.dim() != from_back || !b.cut.same_blocks(a.cut, call.place().ranks)))
    call.no_rule(a.cut, "it pairs other batches with");
  const auto side = [&](const Value& value) {
    const int64_t dim = value.tensor.dim() + from_back;
    if (value.cut) return value.tensor;
    return dim >= 0 && value.tensor.size(dim) > 1 ? call.part(value.tensor, dim, like)
                                                  : call.read_by_parts(value.tensor);
  };
  const at::Tensor y = at::matmul(side(a), side(b));
  return {y, {y.dim() + from_back, like.blocks, like.origin}, call.axis()};
}

// a [.., i, k] times b [.., k, j]
Value product(const Call& call, const Value& a, const Value& b) {
  const int64_t a_dims = a.tensor.dim(), b_dims = b.tensor.dim(), dims = std::max(a_dims, b_dims);
  if (a_dims < 2 || b_dims < 2) call.no_rule(a.cut ? a.cut : b.cut, "of a vector, it reads");
  const int64_t a_dim = a.cut ? a.cut.dim - a_dims : 0, b_dim = b.cut ? b.cut.dim - b_dims : 0;
  if (a_dim == -1 || b_dim == -2) return inner_product(call, a, b);
  if (b_dim == -1) {
    // Of a sequence that is cut all ranks' parts are needed.
    const at::Tensor x = a.cut ? call.gathered(a, /*for_parts=*/true) : call.read_by_parts(a.tensor);
    return {at::matmul(x, b.tensor), {dims - 1, b.cut.blocks, b.cut.origin}, call.axis()};
  }
  const bool is_linear = b_dims == 2;
  if (a_dim == -2 || (is_linear && a.cut)) {
    if (b.cut) call.no_rule(b.cut, "it multiplies parts of rows by");
    return {at::matmul(a.tensor, call.read_by_parts(b.tensor)),
            {dims + a_dim, a.cut.blocks, a.cut.origin},
            call.axis()};
  }
  return batch_product(call, a, b);
}

Value with_bias(const Call& call, const Value& y, const Value& bias) {
  if (!bias.tensor.defined()) return y;
  at::Tensor b = bias.tensor;
  // As autocast casts what a linear layer reads.
  if (at::autocast::is_autocast_enabled(b.device().type())) b = b.to(y.tensor.scalar_type());
  const bool is_column = y.cut && y.cut.dim == y.tensor.dim() - 1;
  if (!is_column && bias.cut) b = call.gathered({b, bias.cut, bias.axis}, /*for_parts=*/false);
  if (is_column && bias.cut && !bias.cut.same_blocks(y.cut, call.place().ranks))
    call.no_rule(bias.cut, "its bias is cut otherwise:");
  if (is_column && !bias.cut)
    b = call.part(b, b.dim() - 1, y.cut);
  else if (y.cut && !is_column)
    b = call.read_by_parts(b);
  return {y.tensor + b, y.cut, y.axis};
}

}  // namespace

void matmul(Call& call) { call.finish(product(call, call.value(0), call.value(1))); }

void addmm(Call& call) {
  const Value bias = call.value(0), a = call.value(1), b = call.value(2);
  if (!call.argument("beta").toScalar().equal(1) || !call.argument("alpha").toScalar().equal(1))
    call.no_rule(b.cut ? b.cut : a.cut, "with factors, it reads");
  call.finish(with_bias(call, product(call, a, b), bias));
}

void linear(Call& call) {
  const Value x = call.value(0), weight = call.value(1), bias = call.value(2);
  if (weight.cut && weight.cut.dim == 0 && weight.tensor.dim() == 2 &&
      (!bias.tensor.defined() || (bias.cut && bias.cut.same_blocks(weight.cut, call.place().ranks)))) {
    // As LibTorch would compute it, bias and all.
    if (x.cut && x.cut.dim == x.tensor.dim() - 1)
      return call.finish(
          Value{at::linear(call.read_by_parts(call.gathered(x, false)), weight.tensor, bias.tensor),
                {x.tensor.dim() - 1, weight.cut.blocks, weight.cut.origin},
                call.axis()});
    const at::Tensor whole = x.cut ? call.gathered(x, /*for_parts=*/true) : call.read_by_parts(x.tensor);
    return call.finish(Value{at::linear(whole, weight.tensor, bias.tensor),
                             {x.tensor.dim() - 1, weight.cut.blocks, weight.cut.origin},
                             call.axis()});
  }
  if (weight.tensor.dim() != 2) call.no_rule(weight.cut ? weight.cut : x.cut, "of a vector, it reads");
  Value turned{weight.tensor.t(), weight.cut, weight.axis};
  if (turned.cut) turned.cut.dim = 1 - turned.cut.dim;
  call.finish(with_bias(call, product(call, x, turned), bias));
}

}  // namespace zero::detail::rules

// Sums, means, softmax and norms: along other dims than the cut one each rank computes its part; sums along
// it are added up.

#include <algorithm>
#include <numeric>
#include <vector>

#include "tensor/rules.h"

namespace zero::detail::rules {
namespace {

std::vector<int64_t> dims_of(const Call& call, const Value& x) {
  const int64_t dims = x.tensor.dim();
  std::vector<int64_t> result;
  if (call.has("dim") && call.argument("dim").isInt()) {
    result = {call.dim("dim", dims)};
  } else if (call.has("dim")) {
    for (const int64_t dim : call.argument("dim").toIntVector()) result.push_back(dim < 0 ? dim + dims : dim);
  }
  if (result.empty()) {  // of all
    result.resize(static_cast<size_t>(dims));
    std::iota(result.begin(), result.end(), int64_t{0});
  }
  return result;
}

bool contains(const std::vector<int64_t>& dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

// A sum or mean over the cut dim, too: the same on all ranks.
Value total(const Call& call, const Value& x, const std::vector<int64_t>& dims) {
  const bool is_mean = call.name() == "aten::mean";
  if (!is_mean && call.name() != "aten::sum") call.no_rule(x.cut, "it mixes");
  if (call.has("dtype")) call.no_rule(x.cut, "with another dtype it sums");
  const bool keeps = call.index("keepdim") >= 0 && call.argument("keepdim").toBool();
  at::Tensor partial = x.tensor.sum(dims, keeps);
  if (is_mean) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim == x.cut.dim ? x.cut.global_size() : x.tensor.size(dim);
    partial = partial / count;
  }
  return {call.axis()->sum(partial, x.cut.origin), {}, call.axis()};
}

}  // namespace

void reduce(Call& call) {
  const Value x = call.value(0);
  const std::vector<int64_t> dims = dims_of(call, x);
  if (contains(dims, x.cut.dim)) return call.finish(total(call, x, dims));
  const bool keeps = call.index("keepdim") < 0 || call.argument("keepdim").toBool();
  Cut cut = x.cut;
  if (!keeps)
    for (const int64_t dim : dims) cut.dim -= dim < x.cut.dim ? 1 : 0;
  call.argument(0) = x.tensor;
  call.run(cut);
}

void normalise(Call& call) {
  const Value x = call.value(0);
  const auto normalised = static_cast<int64_t>(call.argument("normalized_shape").toIntVector().size());
  if (!x.cut) call.no_rule(call.value(1).cut, "its weight lacks");
  if (x.cut.dim >= x.tensor.dim() - normalised) call.no_rule(x.cut, "it mixes");
  call.argument(0) = x.tensor;
  for (const char* name : {"weight", "bias"}) {
    if (!call.has(name)) continue;
    const Value weight = value_of(call.argument(name).toTensor());
    if (weight.cut) call.no_rule(weight.cut, "its weight lacks");
    call.argument(name) = call.read_by_parts(weight.tensor);
  }
  call.run(x.cut);
}

}  // namespace zero::detail::rules

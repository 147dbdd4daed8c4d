// Pieces of a tensor, and tensors joined to one.

#include <algorithm>
#include <vector>

#include "tensor/rules.h"

namespace zero::detail::rules {
namespace {

// Whole blocks [begin, begin + length) of the cut dim, by their place in the whole.
Value blocks_at(const Call& call, const Value& x, int64_t begin, int64_t length) {
  int64_t at = 0, at_local = 0;
  Cut cut{x.cut.dim, {}, x.cut.origin};
  int64_t found = 0, first_local = 0, local = 0;
  for (const Block& block : x.cut.blocks) {
    const int64_t size = part_size(block, call.place());
    if (at >= begin && at + block.size <= begin + length) {
      if (found == 0) first_local = at_local;
      found += block.size;
      local += size;
      cut.blocks.push_back(block);
    }
    at += block.size;
    at_local += size;
  }
  if (found != length || length == 0) call.no_rule(x.cut, "it cuts across ranks");
  return {x.tensor.narrow(x.cut.dim, first_local, local), cut, call.axis()};
}

int64_t bounded(const Call& call, const char* name, int64_t otherwise, int64_t size) {
  if (!call.has(name)) return otherwise;
  const int64_t given = call.argument(name).toInt();
  return std::clamp<int64_t>(given < 0 ? given + size : given, 0, size);
}

// Lengths of the parts that split, split_with_sizes, chunk make of `size` elements.
std::vector<int64_t> lengths_of(const Call& call, const Value& x) {
  const int64_t size = x.cut.global_size();
  if (call.argument(1).isIntList()) return call.argument(1).toIntVector();
  if (!call.argument(1).isInt() || call.name() == "aten::unbind")
    call.no_rule(x.cut, "it takes single indices of");
  const int64_t given = call.argument(1).toInt();
  const int64_t each = call.name() == "aten::chunk" ? (size + given - 1) / given : given;
  if (each <= 0) call.no_rule(x.cut, "it takes nothing of");
  std::vector<int64_t> lengths;
  for (int64_t at = 0; at < size; at += each) lengths.push_back(std::min(each, size - at));
  return lengths;
}

}  // namespace

void slice(Call& call) {
  const Value x = call.value(0);
  const std::string& name = call.name();
  const int64_t dim = call.dim("dim", x.tensor.dim());
  if (dim != x.cut.dim) {
    Cut cut = x.cut;
    if (name == "aten::unbind" && dim < cut.dim) --cut.dim;
    call.argument(0) = x.tensor;
    return call.run(cut);
  }
  if (name == "aten::slice") {
    if (call.argument("step").toInt() != 1) call.no_rule(x.cut, "it takes single indices of");
    const int64_t size = x.cut.global_size();
    const int64_t begin = bounded(call, "start", 0, size), end = bounded(call, "end", size, size);
    return call.finish(blocks_at(call, x, begin, std::max<int64_t>(0, end - begin)));
  }
  if (name == "aten::narrow") {
    if (!call.argument("start").isInt()) call.no_rule(x.cut, "it takes what data says of");
    return call.finish(blocks_at(call, x, call.argument("start").toInt(), call.argument("length").toInt()));
  }
  c10::List<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t length : lengths_of(call, x)) {
    const Value part = blocks_at(call, x, begin, length);
    parts.push_back(wrapped(part.tensor, part.cut, call.axis()));
    begin += length;
  }
  call.finish_with(parts);
}

void join(Call& call) {
  std::vector<at::Tensor> tensors = call.argument(0).toTensorVector();
  Cut cut;
  for (const at::Tensor& tensor : tensors)
    if (const Value value = value_of(tensor); value.cut) cut = value.cut;
  const bool stacks = call.name() == "aten::stack";
  const int64_t dim = call.dim("dim", tensors.front().dim() + (stacks ? 1 : 0));
  if (!stacks && dim == cut.dim) call.no_rule(cut, "it joins along");
  for (at::Tensor& tensor : tensors) {
    const Value value = value_of(tensor);
    if (value.cut && (value.cut.dim != cut.dim || !value.cut.same_blocks(cut, call.place().ranks)))
      call.no_rule(cut, "it joins two ways of cutting:");
    if (!value.cut && value.tensor.dim() <= cut.dim) call.no_rule(cut, "it joins with a tensor that lacks");
    tensor = value.cut ? value.tensor : call.part(value.tensor, cut.dim, cut);
  }
  if (stacks && dim <= cut.dim) ++cut.dim;
  call.argument(0) = tensors;
  call.run(cut);
}

}  // namespace zero::detail::rules

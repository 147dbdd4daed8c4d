// The view family: other sizes or another order of the same elements.

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "tensor/rules.h"

namespace zero::detail::rules {
namespace {

using Sizes = std::vector<int64_t>;

int64_t product_of(const Sizes& sizes, size_t begin, size_t end) {
  return std::accumulate(sizes.begin() + static_cast<int64_t>(begin),
                         sizes.begin() + static_cast<int64_t>(end), int64_t{1}, std::multiplies<>());
}

// Replaces a -1 among sizes of so many elements.
void infer(Sizes& sizes, int64_t numel) {
  int64_t known = 1;
  for (const int64_t size : sizes) known *= size == -1 ? 1 : size;
  for (int64_t& size : sizes)
    if (size == -1) size = known == 0 ? 0 : numel / known;
}

// "1, 2, 4": numbers of ranks that divide n.
std::string divisors_of(int64_t n) {
  std::string text;
  for (int64_t ranks = 1; ranks <= n && ranks <= 64; ++ranks)
    if (n % ranks == 0) text += (text.empty() ? "" : ", ") + std::to_string(ranks);
  return text;
}

// A block's elements as rows of `behind`, which no rank may hold a piece of.
Block rows_of(const Call& call, const Cut& cut, const Block& block, int64_t behind) {
  if (block.size % behind != 0) call.no_rule(cut, "it cuts the blocks of");
  const int64_t rows = block.size / behind, ranks = call.place().ranks;
  if (block.unit() % behind == 0) return {rows, block.parts};
  if (block.parts % ranks == 0 && rows % ranks == 0) return {rows, ranks};
  call.no_rule(cut, "it makes " + std::to_string(rows) + " of it, of which " + std::to_string(ranks) +
                        " ranks hold pieces (heads would tell, as in \"colwise[" + std::to_string(rows) +
                        "]\"; " + divisors_of(rows) + " ranks could) of");
}

// Dims [begin, end) of one side that hold the elements of the same run of dims of the other.
struct Run {
  size_t in_begin, in_end, out_begin, out_end;
};

// The run with dim `dim` of `in`.
Run run_with(const Call& call, const Sizes& in, const Sizes& out, const Cut& cut) {
  for (size_t i = 0, j = 0; i < in.size() || j < out.size();) {
    const size_t in_begin = i, out_begin = j;
    int64_t a = i < in.size() ? in[i++] : 1, b = j < out.size() ? out[j++] : 1;
    while (a != b) {
      if (a < b ? i >= in.size() : j >= out.size()) call.no_rule(cut, "sizes do not fit those of");
      if (a < b)
        a *= in[i++];
      else
        b *= out[j++];
    }
    if (cut.dim >= static_cast<int64_t>(in_begin) && cut.dim < static_cast<int64_t>(i))
      return {in_begin, i, out_begin, j};
  }
  call.no_rule(cut, "it loses");
}

// The run's elements as if they lay along one dim: what stands before the cut dim repeats its blocks, what
// stands behind makes them longer.
std::vector<Block> flat_blocks(const Sizes& in, const Run& run, const Cut& cut) {
  const auto dim = static_cast<size_t>(cut.dim);
  const int64_t before = product_of(in, run.in_begin, dim), behind = product_of(in, dim + 1, run.in_end);
  std::vector<Block> blocks;
  for (int64_t i = 0; i < before; ++i)
    for (const Block& block : cut.blocks) blocks.emplace_back(block.size * behind, block.parts);
  return blocks;
}

Cut cut_after_view(const Call& call, const Sizes& in, const Sizes& out, const Cut& cut) {
  const Run run = run_with(call, in, out, cut);
  const std::vector<Block> blocks = flat_blocks(in, run, cut);
  const auto count = static_cast<int64_t>(blocks.size());
  // The first dim that does more than count whole blocks.
  int64_t before = 1;
  size_t dim = run.out_begin;
  while (dim + 1 < run.out_end && before * out[dim] <= (out[dim] == 1 ? before : count)) before *= out[dim++];
  const bool equal =
      std::all_of(blocks.begin(), blocks.end(), [&](const Block& one) { return one == blocks.front(); });
  if (count % before != 0 || (before > 1 && !equal)) call.no_rule(cut, "it cuts the blocks of");
  const int64_t behind = product_of(out, dim + 1, run.out_end);
  std::vector<Block> result(blocks.begin(), blocks.begin() + count / before);
  for (Block& block : result)
    if (behind > 1) block = rows_of(call, cut, block, behind);
  return {static_cast<int64_t>(dim), result, cut.origin};
}

Sizes flattened(const Call& call, const Sizes& in) {
  const auto dims = static_cast<int64_t>(in.size());
  const auto first = static_cast<size_t>(call.dim("start_dim", dims)),
             last = static_cast<size_t>(call.dim("end_dim", dims));
  Sizes out(in.begin(), in.begin() + static_cast<int64_t>(first));
  out.push_back(product_of(in, first, last + 1));
  out.insert(out.end(), in.begin() + static_cast<int64_t>(last) + 1, in.end());
  return out;
}

Sizes unflattened(const Call& call, const Sizes& in) {
  const int64_t dim = call.dim("dim", static_cast<int64_t>(in.size()));
  Sizes inner = call.argument("sizes").toIntVector();
  infer(inner, in[static_cast<size_t>(dim)]);
  Sizes out = in;
  out.erase(out.begin() + dim);
  out.insert(out.begin() + dim, inner.begin(), inner.end());
  return out;
}

Sizes sizes_asked_for(const Call& call, const Sizes& in) {
  if (call.name() == "aten::flatten") return flattened(call, in);
  if (call.name() == "aten::unflatten") return unflattened(call, in);
  Sizes out = call.argument(1).toIntVector();
  infer(out, product_of(in, 0, in.size()));
  return out;
}

int64_t permuted(const Call& call, int64_t dims, int64_t dim) {
  const Sizes order = call.argument("dims").toIntVector();
  for (int64_t i = 0; i < dims; ++i)
    if ((order[static_cast<size_t>(i)] + dims) % dims == dim) return i;
  return dim;
}

int64_t without_dim(const Call& call, const Value& x) {
  if (call.index("dim") < 0 || !call.argument("dim").isInt())
    call.no_rule(x.cut, "without one dim it may drop");
  const int64_t dim = call.dim("dim", x.tensor.dim());
  if (dim == x.cut.dim) call.no_rule(x.cut, "it takes one index of");
  const bool drops = call.name() == "aten::select" || x.tensor.size(dim) == 1;
  return x.cut.dim - (drops && dim < x.cut.dim ? 1 : 0);
}

}  // namespace

void view(Call& call) {
  const Value x = call.value(0);
  if (call.has("dtype") || (call.count() > 1 && call.name() == "aten::view" && !call.argument(1).isIntList()))
    call.no_rule(x.cut, "as another dtype it changes");
  const Sizes in = call.sizes_seen(0);
  Sizes out = sizes_asked_for(call, in);
  const Cut cut = cut_after_view(call, in, out, x.cut);
  out[static_cast<size_t>(cut.dim)] = local_size(cut, call.place());
  call.finish(
      Value{call.name() == "aten::view" ? x.tensor.view(out) : x.tensor.reshape(out), cut, call.axis()});
}

void rearrange(Call& call) {
  const Value x = call.value(0);
  Cut cut = x.cut;
  const int64_t dims = x.tensor.dim();
  const std::string& name = call.name();
  if (name == "aten::t" || name == "aten::numpy_T") {
    cut.dim = dims - 1 - cut.dim;
  } else if (name == "aten::transpose") {
    const int64_t a = call.dim("dim0", dims), b = call.dim("dim1", dims);
    cut.dim = cut.dim == a ? b : cut.dim == b ? a : cut.dim;
  } else if (name == "aten::permute") {
    cut.dim = permuted(call, dims, cut.dim);
  } else if (name == "aten::unsqueeze") {
    cut.dim += call.dim("dim", dims + 1) <= cut.dim ? 1 : 0;
  } else if (name == "aten::expand") {
    Sizes sizes = call.argument("size").toIntVector();
    cut.dim += static_cast<int64_t>(sizes.size()) - dims;
    sizes[static_cast<size_t>(cut.dim)] = -1;
    call.argument("size") = sizes;
  } else {
    cut.dim = without_dim(call, x);
  }
  call.argument(0) = x.tensor;
  call.run(cut);
}

void repeat_interleave(Call& call) {
  const Value x = call.value(0);
  Cut cut = x.cut;
  const int64_t dim = call.has("dim") ? call.dim("dim", x.tensor.dim()) : -1;
  if (!call.argument(1).isInt() || dim < 0) call.no_rule(cut, "it flattens");
  if (dim == cut.dim)
    for (Block& block : cut.blocks) block.size *= call.argument(1).toInt();
  call.argument(0) = x.tensor;
  call.run(cut);
}

}  // namespace zero::detail::rules

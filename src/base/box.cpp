#include "zero/box.h"

#include <algorithm>

namespace zero {
namespace {

// Of the elements of `inner`, in row-major order, how many come before element `offset` of `outer`, which
// contains it.
int64_t elements_before(const Box& inner, const Box& outer, int64_t offset) {
  if (offset >= outer.numel()) return inner.numel();
  int64_t stride = outer.numel(), rest = inner.numel(), before = 0;
  for (size_t d = 0; d < inner.size.size(); ++d) {
    stride /= outer.size[d];
    const int64_t at = offset / stride - (inner.begin[d] - outer.begin[d]);
    offset %= stride;
    if (at < 0) return before * rest;
    rest /= inner.size[d];
    before = before * inner.size[d] + std::min(at, inner.size[d]);
    if (at >= inner.size[d]) return before * rest;
  }
  return before;
}

}  // namespace

Box Box::whole(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

int64_t Box::numel() const {
  // First, since the others may be as long as they like then.
  if (std::find(size.begin(), size.end(), 0) != size.end()) return 0;
  int64_t numel = 1;
  for (const int64_t n : size) numel *= n;
  return numel;
}

bool Box::is_inside(std::span<const int64_t> shape) const {
  if (begin.size() != shape.size() || size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d)
    if (begin[d] < 0 || size[d] < 0 || size[d] > shape[d] || begin[d] > shape[d] - size[d]) return false;
  return true;
}

bool Box::contains(const Box& other) const {
  if (other.numel() == 0) return true;
  for (size_t d = 0; d < size.size(); ++d)
    if (other.begin[d] < begin[d] || other.begin[d] + other.size[d] > begin[d] + size[d]) return false;
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common = a;
  for (size_t d = 0; d < a.size.size(); ++d) {
    const int64_t end = std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]);
    common.begin[d] = std::max(a.begin[d], b.begin[d]);
    common.size[d] = end - common.begin[d];
    if (common.size[d] <= 0) return std::nullopt;
  }
  return common;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.size.size(); ++d) {
    if (d > 0) text += ",";
    text += std::to_string(box.begin[d]) + ":" + std::to_string(box.begin[d] + box.size[d]);
  }
  return text + "]";
}

BoxRange BoxRange::all_of(Box box) {
  const int64_t numel = box.numel();
  return {std::move(box), 0, numel};
}

bool BoxRange::is_inside(std::span<const int64_t> shape) const {
  if (!box.is_inside(shape) || begin < 0 || numel < 0) return false;
  const int64_t all = box.numel();
  return begin <= all && numel <= all - begin;
}

CommonRuns::CommonRuns(const BoxRange& a, const BoxRange& b) : begin_a_(a.begin), begin_b_(b.begin) {
  const std::optional<Box> common = intersect(a.box, b.box);
  if (!common) return;
  for (size_t d = 0; d < common->size.size(); ++d)
    dims_.push_back({.size = common->size[d],
                     .offset_a = common->begin[d] - a.box.begin[d],
                     .size_a = a.box.size[d],
                     .offset_b = common->begin[d] - b.box.begin[d],
                     .size_b = b.box.size[d]});
  next_ = std::max(elements_before(*common, a.box, a.begin), elements_before(*common, b.box, b.begin));
  end_ = std::min(elements_before(*common, a.box, a.end()), elements_before(*common, b.box, b.end()));
  if (end_ <= next_) next_ = end_ = 0;
  for (auto dim = dims_.rbegin(); dim != dims_.rend(); ++dim) {
    run_numel_ *= dim->size;
    if (dim->size != dim->size_a || dim->size != dim->size_b) break;
  }
}

// The run of one element of what both have in common.
CommonRun CommonRuns::at(int64_t element) const {
  CommonRun run{.from_a = -begin_a_, .from_b = -begin_b_, .numel = 1};
  int64_t rest = element, stride_a = 1, stride_b = 1;
  for (auto dim = dims_.rbegin(); dim != dims_.rend(); ++dim) {
    const int64_t at = rest % dim->size;
    rest /= dim->size;
    run.from_a += (dim->offset_a + at) * stride_a;
    run.from_b += (dim->offset_b + at) * stride_b;
    stride_a *= dim->size_a;
    stride_b *= dim->size_b;
  }
  return run;
}

int64_t CommonRuns::end_a() const { return end_ == 0 ? 0 : at(end_ - 1).from_a + 1; }

std::optional<CommonRun> CommonRuns::next() {
  if (next_ == end_) return std::nullopt;
  const int64_t stop = std::min(end_, (next_ / run_numel_ + 1) * run_numel_);
  CommonRun run = at(next_);
  run.numel = stop - next_;
  next_ = stop;
  return run;
}

}  // namespace zero

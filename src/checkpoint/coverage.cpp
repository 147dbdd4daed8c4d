#include "checkpoint/coverage.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

namespace zero::checkpoint {
namespace {

constexpr size_t kMostSplitDims = 8;
// Bounds of the work and memory that an index may cause. An ordinary tensor has a few corners a piece.
constexpr size_t kMostCorners = size_t{1} << 21, kMostCornersPerPiece = 256;

/// A corner of a box, in the dims that are split; its sign says how the number of boxes around changes there.
struct Corner {
  std::array<int64_t, kMostSplitDims> at{};
  int64_t sign = 1;
};

std::string held(const char* by, int64_t element) {
  return std::string(by) + " element " + std::to_string(element);
}

// The place of an element of a box in the flattened tensor.
int64_t flat(const std::vector<int64_t>& shape, const Box& box, int64_t element) {
  CommonRuns runs(BoxRange::whole(shape), {box, element, 1});
  return runs.next()->from_a;
}

/// Cuts ranges of boxes into boxes.
class Cutter {
 public:
  explicit Cutter(size_t most) : most_(most) {}
  /// False: more boxes than allowed.
  bool add(const BoxRange& range) { return cut(range.box, 0, range.begin, range.end()); }
  const std::vector<Box>& boxes() const { return boxes_; }

 private:
  // Elements [begin, end) of a box that has one element in each dim before `dim`.
  bool cut(Box box, size_t dim, int64_t begin, int64_t end) {
    if (begin == 0 && end == box.numel()) return put(std::move(box));
    while (box.size[dim] == 1) ++dim;
    const int64_t inner = box.numel() / box.size[dim];
    const int64_t first = box.begin[dim];
    const auto rows = [&](int64_t from, int64_t count) {
      box.begin[dim] = first + from;
      box.size[dim] = count;
      return box;
    };
    int64_t row = begin / inner;
    const int64_t last = end / inner, in_first = begin % inner, in_last = end % inner;
    if (row == last) return cut(rows(row, 1), dim + 1, in_first, in_last);
    if (in_first > 0 && !cut(rows(row++, 1), dim + 1, in_first, inner)) return false;
    if (row < last && !put(rows(row, last - row))) return false;
    return in_last == 0 || cut(rows(last, 1), dim + 1, 0, in_last);
  }
  bool put(Box box) {
    boxes_.push_back(std::move(box));
    return boxes_.size() <= most_;
  }

  size_t most_;
  std::vector<Box> boxes_;
};

std::vector<size_t> split_dims(const std::vector<int64_t>& shape, const std::vector<Box>& boxes) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < shape.size(); ++d)
    if (std::any_of(boxes.begin(), boxes.end(), [&](const Box& box) { return box.size[d] != shape[d]; }))
      dims.push_back(d);
  return dims;
}

void add_corners(const Box& box, const std::vector<size_t>& dims, int64_t sign,
                 std::vector<Corner>& corners) {
  for (size_t ends = 0; ends < size_t{1} << dims.size(); ++ends) {
    Corner& corner = corners.emplace_back(Corner{.at = {}, .sign = sign});
    for (size_t i = 0; i < dims.size(); ++i) {
      const bool is_end = ends >> i & 1;
      corner.at[i] = box.begin[dims[i]] + (is_end ? box.size[dims[i]] : 0);
      if (is_end) corner.sign = -corner.sign;
    }
  }
}

// How many boxes are around each element is the sum of the signs of all corners before it in every dim. So
// boxes cover the tensor once exactly where their corners cancel out but for the tensor's own; and the first
// one that is left, in order, is an element that is held by too many or by none.
std::optional<std::string> boxes_problem(const StoredTensor& tensor, const std::vector<Box>& boxes) {
  const std::vector<int64_t>& shape = tensor.shape;
  const std::vector<size_t> dims = split_dims(shape, boxes);
  const size_t most = std::min(kMostCorners, kMostCornersPerPiece * (tensor.pieces.size() + 1));
  if (dims.size() > kMostSplitDims || (boxes.size() + 1) << dims.size() > most)
    return "its pieces split it in too many ways: " + std::to_string(boxes.size()) + " boxes along " +
           std::to_string(dims.size()) + " dims";
  std::vector<Corner> corners;
  corners.reserve((boxes.size() + 1) << dims.size());
  add_corners(Box::whole(shape), dims, -1, corners);
  for (const Box& box : boxes) add_corners(box, dims, 1, corners);
  std::sort(corners.begin(), corners.end(), [](const Corner& a, const Corner& b) { return a.at < b.at; });
  for (size_t i = 0; i < corners.size();) {
    const Corner& first = corners[i];
    int64_t sum = 0;
    for (; i < corners.size() && corners[i].at == first.at; ++i) sum += corners[i].sign;
    if (sum == 0) continue;
    Box element{std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.size(), 1)};
    for (size_t j = 0; j < dims.size(); ++j) element.begin[dims[j]] = first.at[j];
    return held(sum > 0 ? "two pieces hold" : "no piece holds", flat(shape, element, 0));
  }
  return std::nullopt;
}

}  // namespace

bool comes_before(const BoxRange& a, const BoxRange& b) {
  return std::tie(a.box, a.begin) < std::tie(b.box, b.begin);
}

std::optional<std::string> coverage_problem(const StoredTensor& tensor) {
  const auto& pieces = tensor.pieces;
  if (pieces.empty()) {
    const bool empty = Box::whole(tensor.shape).numel() == 0;
    return empty ? std::nullopt : std::optional(held("no piece holds", 0));
  }
  std::vector<BoxRange> joined;  // ranges of one box that follow each other
  for (const StoredPiece& piece : pieces) {
    const BoxRange& range = piece.range;
    const bool same_box = !joined.empty() && joined.back().box == range.box;
    if (same_box && range.begin < joined.back().end() && range.begin >= joined.back().begin)
      return held("two pieces hold", flat(tensor.shape, range.box, range.begin));
    if (!joined.empty() && comes_before(range, joined.back())) return "its pieces are not in order";
    if (same_box && range.begin == joined.back().end())
      joined.back().numel += range.numel;
    else
      joined.push_back(range);
  }
  Cutter cutter(kMostCornersPerPiece * (pieces.size() + 1));
  for (const BoxRange& range : joined)
    if (!cutter.add(range)) return "its pieces split it in too many ways";
  return boxes_problem(tensor, cutter.boxes());
}

}  // namespace zero::checkpoint

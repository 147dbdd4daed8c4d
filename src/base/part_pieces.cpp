#include "base/part_pieces.h"

#include <functional>
#include <numeric>

namespace zero {
namespace {

// The dim along which the boxes are joined; 0 where there is one.
size_t joined_dim(const ParameterPart& part) {
  for (size_t dim = 0; dim < part.box.begin.size(); ++dim)
    for (const Box& other : part.beside)
      if (other.begin[dim] != part.box.begin[dim]) return dim;
  return 0;
}

// Elements of a box in the part's first `end`.
int64_t count_before(const PartPiece& piece, int64_t end) {
  const int64_t in_row = std::clamp<int64_t>(end % piece.part_row - piece.offset, 0, piece.row);
  return end / piece.part_row * piece.row + in_row;
}

}  // namespace

std::vector<PartPiece> pieces_of(const ParameterPart& part, int64_t begin, int64_t numel) {
  if (part.beside.empty()) {
    const int64_t all = std::max<int64_t>(1, part.box.numel());
    return {{{part.box, begin, numel}, begin, all, all, 0}};
  }
  const size_t dim = joined_dim(part);
  std::vector<PartPiece> pieces;
  int64_t part_row = 0;
  const auto add = [&](const Box& box) {
    const int64_t row = std::accumulate(box.size.begin() + static_cast<int64_t>(dim), box.size.end(),
                                        int64_t{1}, std::multiplies<>());
    pieces.push_back({{box, 0, 0}, begin, row, 0, part_row});
    part_row += row;
  };
  add(part.box);
  for (const Box& box : part.beside) add(box);
  for (PartPiece& piece : pieces) {
    piece.part_row = part_row;
    piece.range.begin = count_before(piece, begin);
    piece.range.numel = count_before(piece, begin + numel) - piece.range.begin;
  }
  std::erase_if(pieces, [](const PartPiece& piece) { return piece.range.numel == 0; });
  return pieces;
}

}  // namespace zero

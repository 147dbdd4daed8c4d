#pragma once
// A rank's part of a parameter as ranges of boxes of the whole.

#include <algorithm>
#include <vector>

#include "zero/parameter_part.h"

namespace zero {

/// What some elements of a part have in one of its boxes: a range of that box' elements, which lie in the
/// part row by row.
struct PartPiece {
  BoxRange range;
  int64_t begin = 0;              // of the elements, counted in the part
  int64_t row = 0, part_row = 0;  // elements of a row, in the box and in the part
  int64_t offset = 0;             // of the box' rows in those of the part

  /// visit(of the elements, of the range, numel): runs that lie one after the other in both, ascending.
  template <class Visit>
  void for_each_run(Visit visit) const {
    for (int64_t at = range.begin; at < range.end();) {
      const int64_t column = at % row, numel = std::min(row - column, range.end() - at);
      visit(at / row * part_row + offset + column - begin, at - range.begin, numel);
      at += numel;
    }
  }
};

/// Elements [begin, begin + numel) of what a rank holds, in its row-major order: a piece for each of the
/// part's boxes that has some.
std::vector<PartPiece> pieces_of(const ParameterPart& part, int64_t begin, int64_t numel);

}  // namespace zero

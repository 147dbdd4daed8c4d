#pragma once
// How much of a layer's work the rank has that has most of it, where ranks share layers and do not divide
// them.

#include "zero/model_shape.h"

namespace zero {

/// Of one layer's operations, from over 0 to 1: of products with weights, and of attention's scores.
struct LargestPart {
  double products = 1, scores = 1;
};

/// Heads are shared whole; heads of keys and values that the ranks outnumber are on all of them.
LargestPart largest_part(const ModelShape& shape, int ranks);

}  // namespace zero

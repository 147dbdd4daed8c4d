#pragma once
// Elements from one floating type to another, without a tensor library.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "zero/dtype.h"

namespace zero::exporting {

/// True for the types that convert() takes and gives: fp32, bf16, fp16; fp64 is only taken.
bool is_convertible(Dtype from, Dtype to);

/// Appends to `out` the elements of `in`, rounded to the nearest, ties to even. Throws Config, naming
/// `place`, for a finite value that `to` cannot hold.
void convert(Dtype from, std::span<const std::byte> in, Dtype to, std::vector<std::byte>& out,
             std::string_view place);

}  // namespace zero::exporting

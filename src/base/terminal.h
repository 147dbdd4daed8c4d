#pragma once
// How wide what is printed may be.

#include <cstdio>

namespace zero {

/// Columns of the terminal that `out` is; 0 when it is none.
int terminal_columns(std::FILE* out);

/// COLUMNS of the environment if it is a number above 0, otherwise terminal_columns: 0 when nothing bounds a
/// line.
int line_columns(std::FILE* out);

}  // namespace zero

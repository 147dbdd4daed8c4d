#pragma once
// The command line of `zero bench step`.

#include "bench_steps.h"
#include "verbs.h"

namespace zero::tool {

/// Options that set `arguments`, beginning with this build's defaults.
void add_bench_options(CLI::App& step, BenchArguments& arguments);

/// Throws Config for what does not go together, Unsupported for what this build does not have.
void check_bench(const BenchArguments& arguments);

}  // namespace zero::tool

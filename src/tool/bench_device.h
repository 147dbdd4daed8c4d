#pragma once
// `zero bench device`: this machine's own description, measured.

#include "verbs.h"

namespace zero::tool {

struct DeviceArguments {
  int ranks = 1, threads = 0;
};

/// The subcommand's options.
CLI::App* add_bench_device(CLI::App& app, DeviceArguments& arguments);

/// Measures what `arguments.ranks` ranks, each with its part of the cores, take for the operators of small
/// language models, all at the same time, and prints rank 0's description of a device
/// (virtual/description.h), one line of JSON. `argc` and `argv` as run_bench() got them.
int bench_device(const DeviceArguments& arguments, int argc, char** argv);

}  // namespace zero::tool

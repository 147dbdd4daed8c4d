#pragma once
// What `zero bench step --offload disk` says of the disk.

#include <nlohmann/json.hpp>

#include "bench_steps.h"
#include "zero/engine.h"
#include "zero/mesh.h"

namespace zero::tool {

/// Bytes a second that the ranks together write and read one after the other, each its own file, many blocks
/// under way: what the directory's disk can do now. Collective.
struct SequentialRate {
  double written = 0, read = 0;
};
SequentialRate sequential_rate(const Mesh& mesh, const OffloadOptions& how);

/// Placement and bytes by tier, of this rank; on disk also what the steps moved beside `sequential`.
void put_offload(nlohmann::ordered_json& record, const BenchArguments& arguments, const Engine& engine,
                 int ranks, const SequentialRate& sequential);

}  // namespace zero::tool

#pragma once
// The traces of all ranks in one file.

#include <filesystem>

#include "zero/mesh.h"

namespace zero {

/// Rank 0 writes what the traces of all ranks have taken down (MeshOptions::trace). Collective. Throws Io on
/// every rank, naming the file; Usage where a rank has no trace.
void write_trace(const Mesh& mesh, const std::filesystem::path& path);

}  // namespace zero

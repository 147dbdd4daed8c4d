#pragma once
// The traces of all ranks in one file.

#include <filesystem>
#include <span>
#include <string>

#include "zero/mesh.h"

namespace zero {

/// Throws Config unless a trace can be written there: in a directory that exists, where nothing stands yet or
/// an older trace.
void check_trace_file(const std::filesystem::path& path);

/// Rank 0 writes what the traces of all ranks have taken down (MeshOptions::trace). `device_events` are more
/// of this rank's, JSON objects separated by commas whose microseconds begin with the run: with them all
/// times are told from where rank 0's trace begins. Collective, all ranks with such events or none. Throws Io
/// on every rank, naming the file, and Config as check_trace_file(); Usage where a rank has no trace.
void write_trace(const Mesh& mesh, const std::filesystem::path& path, const std::string& device_events = {});

/// The same of one process that has the events of all ranks (Trace::events()). Throws Io and Config.
void write_trace_events(std::span<const std::string> events, const std::filesystem::path& path);

}  // namespace zero

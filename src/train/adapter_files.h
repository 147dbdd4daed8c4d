#pragma once
// The adapters of a run, written for PEFT.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "zero/config.h"
#include "zero/mesh.h"

namespace zero::training {

/// Beside the checkpoints of a run; the newest adapters only.
inline constexpr const char* kAdapterDirectory = "adapter";

/// What the ranks of the mesh's "pp" axis hold of some parameters, whole, on each of them. Collective along
/// it.
std::map<std::string, std::vector<float>> joined_along_pipeline(
    const Mesh& mesh, std::map<std::string, std::vector<float>> values);

/// Writes adapter_config.json and adapter_model.safetensors (fp32), each replaced whole. `values`: of every
/// adapter parameter by its name. Throws Io.
void write_adapters(const std::filesystem::path& directory, const Config& config,
                    const std::map<std::string, std::vector<float>>& values);

}  // namespace zero::training

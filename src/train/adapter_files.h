#pragma once
// The adapters of a run, written for PEFT.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "zero/config.h"

namespace zero::training {

/// Beside the checkpoints of a run; the newest adapters only.
inline constexpr const char* kAdapterDirectory = "adapter";

/// Writes adapter_config.json and adapter_model.safetensors (fp32), each replaced whole. `values`: of every
/// adapter parameter by its name. Throws Io.
void write_adapters(const std::filesystem::path& directory, const Config& config,
                    const std::map<std::string, std::vector<float>>& values);

}  // namespace zero::training

#pragma once
// Models in Hugging Face's layout, as far as the configuration has to do with them.

#include <filesystem>

#include "zero/config.h"

namespace zero {

/// Where model.from names a model directory, takes the architecture and shape from its config.json; numbers
/// given in the configuration beside `from` must agree with it. Anything else comes back as it is. Call
/// before resolve(). Throws Config where the directory has no config.json or disagrees with what was given
/// (all of it in one error), and Unsupported for an architecture or options that this version does not do.
Config adopt_model(Config config);

/// True for a directory with a config.json that names a model_type.
bool is_hf_directory(const std::filesystem::path& directory);

}  // namespace zero

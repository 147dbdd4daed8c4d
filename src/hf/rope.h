#pragma once
// Rotations in a config.json: a base and `rope_scaling` of their own, or, since transformers 5, both in
// `rope_parameters`.

#include "hf/architecture.h"

namespace zero::hf {

/// Reads the base (from `theta_key` or rope_parameters), the scaling and the rotated part of a head.
void read_rope(ConfigReader& reader, const std::string& theta_key, ModelConfig& model);

/// The value of `rope_scaling` for Llama 3's scaling.
nlohmann::ordered_json llama3_scaling(const RopeScaling& scaling);

}  // namespace zero::hf

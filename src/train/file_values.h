#pragma once
// Initial values of a model and its adapters from files in Hugging Face's layouts.

#include <filesystem>
#include <memory>

#include "zero/config.h"
#include "zero/engine.h"

namespace zero::training {

/// What model.from and lora.from hold, checked against the configured model; nullptr where neither is given.
/// Throws Config with all tensors that are missing, not the model's or of another shape, Io and Corrupt.
std::shared_ptr<const InitialValues> file_values_of(const Config& config);

}  // namespace zero::training

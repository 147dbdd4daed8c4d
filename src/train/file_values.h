#pragma once
// Initial values of a model and its adapters from files in Hugging Face's layouts.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "zero/config.h"
#include "zero/engine.h"

namespace zero::training {

/// What model.from and lora.from hold, checked against the configured model; nullptr where neither is given.
/// Throws Config with all tensors that are missing, not the model's or of another shape, Io and Corrupt.
std::shared_ptr<const InitialValues> file_values_of(const Config& config);

/// A tensor whose memory are these bytes, which it keeps. Nobody may write to it.
at::Tensor tensor_over(const std::shared_ptr<const std::byte>& bytes, const std::vector<int64_t>& shape,
                       at::ScalarType dtype);

}  // namespace zero::training

#pragma once
// The model that a configuration trains.

#include <memory>

#include "zero/config.h"
#include "zero/language_model.h"
#include "zero/mesh.h"
#include "zero/tensor_parallel.h"

namespace zero::training {

/// Lazily built from model.seed, with adapters, what is frozen and what is recomputed. (but for an
/// automatic choice without a memory of its own, which the caller makes). Throws Config as
/// make_language_model(), add_adapters() and freeze() do.
std::shared_ptr<LanguageModel> training_model(const Config& config);

/// Cuts it over the mesh's "tp" axis as `parallel` says. Throws Config for what its ranks cannot share.
TensorParallel parallelized(LanguageModel& model, const Config& config, const Mesh& mesh);

}  // namespace zero::training

#pragma once
// The model that a configuration trains.

#include <memory>

#include "zero/config.h"
#include "zero/language_model.h"

namespace zero::training {

/// Lazily built from model.seed, with adapters, what is frozen and what is recomputed. Throws Config as
/// make_language_model(), add_adapters() and freeze() do.
std::shared_ptr<LanguageModel> training_model(const Config& config);

}  // namespace zero::training

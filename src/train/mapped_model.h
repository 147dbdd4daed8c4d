#pragma once
// A model whose parameters are where its files lie in memory: pages that are read once for all processes of a
// host and that cost nothing to let go of.

#include <memory>

#include "train/saved_values.h"
#include "zero/language_model.h"

namespace zero::training {

/// Nothing may write to its parameters. Those whose files have another type than `dtype` are copied, if
/// `may_copy`; else the result is null. Of a model directory, on the CPU. Throws as load_model().
std::shared_ptr<LanguageModel> mapped_model(const SavedModel& saved, at::ScalarType dtype, bool may_copy);

/// Fills a parameter, its shape and type as it has them: fp32 straight into its memory, other types a piece
/// at a time.
void read_parameter(const InitialValues& values, const std::string& name, const at::Tensor& parameter);

}  // namespace zero::training

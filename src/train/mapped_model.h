#pragma once
// A model whose parameters are where its files lie in memory: pages that are read once for all processes of a
// host and that cost nothing to let go of.

#include <memory>

#include "train/saved_values.h"
#include "zero/language_model.h"

namespace zero::training {

/// With the adapters of a run that has some; no gradients, in eval mode, no memory for its parameters yet.
std::shared_ptr<LanguageModel> lazy_inference_model(const Config& config);

/// Which of the parameters that have to be checked this caller looks at: of `count` callers, those of its
/// number.
struct CheckShare {
  int64_t number = 0, count = 1;
};

/// Nothing may write to its parameters. Those that lie nowhere as `dtype` in one piece are copied, if
/// `may_copy`; else the result is null, and so it is where none could be mapped of a checkpoint. Checksums of
/// mapped ones are compared as `share` says, and copied ones as they are read. On the CPU. Throws as
/// load_model().
std::shared_ptr<LanguageModel> mapped_model(const SavedModel& saved, at::ScalarType dtype, bool may_copy,
                                            const CheckShare& share);

/// Fills a parameter, its shape and type as it has them: fp32 straight into its memory, other types a piece
/// at a time.
void read_parameter(const InitialValues& values, const std::string& name, const at::Tensor& parameter);

}  // namespace zero::training

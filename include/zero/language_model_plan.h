#pragma once
// How our language models are cut over tensor-parallel ranks.

#include "zero/language_model.h"
#include "zero/tensor_parallel.h"

namespace zero {

struct LanguageModelPlanOptions {
  bool cuts_vocabulary = true;  // off: embedding, head and loss are the same on all ranks
};

/// The plan of a model of that shape, adapters included, for so many ranks. Throws Config for heads or widths
/// that they cannot share, with the number of ranks that could.
TensorParallelPlan tensor_parallel_plan(const LanguageModel& model, const ModelShape& shape, int ranks,
                                        const LanguageModelPlanOptions& options = {});

}  // namespace zero

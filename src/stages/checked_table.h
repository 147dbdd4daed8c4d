#pragma once
// What a pipeline's ranks do in a step.

#include "pipeline/table.h"
#include "zero/mesh.h"
#include "zero/pipeline.h"

namespace zero::detail {

/// Along "pp". Throws Config for a mesh without that axis.
Group group_along_pipeline(const Mesh& mesh);

/// Proved free of deadlock, with micro-batches in order. Throws Config for options that make none.
pipeline::Table checked_table(const PipelineOptions& options, int ranks);

}  // namespace zero::detail

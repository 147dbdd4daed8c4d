#include "export/consolidate.h"
#include "zero/consolidate.h"
#include "zero/model_spec.h"

namespace zero {

Consolidated consolidate(const std::filesystem::path& checkpoint, const std::filesystem::path& out,
                         const ConsolidateOptions& options) {
  return exporting::consolidate(checkpoint, out, options, trained_spec);
}

}  // namespace zero

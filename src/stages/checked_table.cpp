#include "stages/checked_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "pipeline/schedules.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using pipeline::Action;
using pipeline::Pass;

// Sums have the bits of one rank's accumulation only if each stage sees micro-batches in order.
void require_in_order(const pipeline::Table& table) {
  for (const auto& row : table.rows) {
    std::map<std::pair<Pass, int>, int> next;
    for (const Action& action : row)
      require(action.micro_batch == next[{action.pass, action.chunk}]++, ErrorKind::Internal, "pipeline",
              "a schedule changes the order of micro-batches");
  }
}

}  // namespace

Group group_along_pipeline(const Mesh& mesh) {
  const auto axes = mesh.axes();
  require(std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.name == "pp"; }),
          ErrorKind::Config, "pipeline", "the mesh has no axis \"pp\"",
          "give MeshOptions::axes {{\"pp\", stages}, {\"dp\", -1}}");
  return mesh.group("pp");
}

pipeline::Table checked_table(const PipelineOptions& options, int ranks) {
  pipeline::Table table = pipeline::make_schedule(
      pipeline::kind_from(options.schedule), ranks, options.micro_batches, options.chunks,
      {.costs = {}, .kept_micro_batches = options.kept_micro_batches});
  pipeline::check_table(table);
  require_in_order(table);
  return table;
}

}  // namespace zero::detail

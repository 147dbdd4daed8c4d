#include "train/activation_memory.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "mesh/agree.h"
#include "mesh/host_identity.h"
#include "train/process_memory.h"
#include "zero/error.h"
#include "zero/plan_report.h"

namespace zero::training {
namespace {

/// How many of the ranks are on this one's host.
int ranks_here(const Mesh& mesh) {
  const std::string own = detail::host_identity("");
  int ranks = 0;
  for (int rank = 0; rank < mesh.size(); ++rank)
    if (detail::text_of_rank(mesh, rank, own, "hosts") == own) ++ranks;
  return ranks;
}

}  // namespace

ActivationMemory activation_memory(const Mesh& mesh, const Plan& plan, const ActivationBytes& activations) {
  require(mesh.device().is_cpu(), ErrorKind::Unsupported, "activation_checkpointing.memory",
          "recompute \"auto\" finds out what is free on a CPU only", "say what the blocks may keep");
  const int here = ranks_here(mesh);
  const int64_t planned = peak_bytes(plan, {.kept = 0, .loss = activations.loss, .again = activations.again});
  const int64_t to_come = std::max<int64_t>(0, planned - process_memory().resident_bytes);
  const int64_t part = free_memory_bytes() / here;
  const double own = static_cast<double>(std::max<int64_t>(0, part - to_come)) * 0.9;
  const at::Tensor least = at::full({1}, -own, at::kDouble);
  mesh.world().all_reduce(least, Group::Reduce::Max, "memory for activations").wait();
  ActivationMemory memory{.bytes = static_cast<int64_t>(-least.item<double>()), .reason = {}};
  memory.reason = "activation_checkpointing.memory: " + human_bytes(memory.bytes) + ", as " +
                  human_bytes(part) + " are free for each of " + std::to_string(here) +
                  " ranks and the plan takes " + human_bytes(to_come) + " of them";
  return memory;
}

}  // namespace zero::training

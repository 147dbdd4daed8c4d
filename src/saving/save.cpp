// What ranks agree on while a SaveJob writes.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <nlohmann/json.hpp>

#include "checkpoint/json.h"
#include "compute/wait_place.h"
#include "mesh/agree.h"
#include "saving/checkpoint_parts.h"
#include "saving/frozen.h"
#include "saving/save_job.h"
#include "saving/saving.h"
#include "saving/snapshot.h"
#include "sharding/sharded_model.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using Json = nlohmann::json;

// Updates of each parameter of the whole model: ranks along other axes may hold others.
Json steps_by_name(const ShardedModel& model) {
  Json steps = Json::object();
  const std::vector<int64_t> taken = model.optimizer->parameter_steps();
  for (size_t i = 0; i < taken.size(); ++i) steps[model.names()[i]] = taken[i];
  if (model.all.size() == model.mesh.size()) return steps;
  const std::string mine = model.all.rank() == 0 ? steps.dump() : "{}";
  for (const std::string& theirs : gather_text(model.mesh, model.mesh.world(), mine, "steps of parameters"))
    steps.update(Json::parse(theirs));
  return steps;
}

Json engine_metadata(ShardedModel& model, const StepCounts& counts, const SaveOptions& options) {
  Json user = Json::parse(options.metadata, nullptr, false);
  require(user.is_object(), ErrorKind::Usage, "save", "metadata must be a JSON object");
  Json engine = {{"format", kEngineFormat},
                 {"ranks", model.mesh.size()},
                 {"stage", model.plan.stage},
                 {"steps", counts.steps},
                 {"skipped_steps", counts.skipped_steps},
                 {"parameter_steps", steps_by_name(model)}};
  if (const auto& scale = counts.loss_scale)
    engine["loss_scale"] = {{"scale", scale->scale},
                            {"steps", scale->steps},
                            {"clean_steps", scale->clean_steps},
                            {"hysteresis", scale->hysteresis}};
  if (!options.frozen_from.empty()) {
    engine["frozen_from"] = options.frozen_from;
    engine["frozen"] = Json::object();
    for (const auto& [name, fingerprint] : frozen_fingerprints(model))
      engine["frozen"][name] = checkpoint::to_hex(fingerprint);
  }
  return {{"engine", engine}, {"user", user}};
}

// Rank 0 makes the temporary directory and tells the others its name.
std::filesystem::path begin_together(ShardedModel& model, int64_t step,
                                     const std::filesystem::path& directory) {
  std::filesystem::path temporary;
  try {
    together(model.mesh, model.mesh.world(), "save", [&] {
      if (model.mesh.rank() == 0) temporary = CheckpointWriter::begin(directory, step);
    });
    const std::string mine = temporary.empty() ? "" : std::to_string(CheckpointWriter::save_id(temporary));
    const std::string id = gather_text(model.mesh, model.mesh.world(), mine, "save")[0];
    return CheckpointWriter::temporary_path(directory, step, std::stoull(id));
  } catch (...) {
    if (!temporary.empty()) CheckpointWriter::abandon(temporary);
    throw;
  }
}

// Whether the phase is over on all ranks. Waits for nobody.
bool all_are_done(const ShardedModel& model, const SaveJob& job) {
  at::Tensor working =
      at::full({1}, job.is_working() ? 1.0f : 0.0f, at::TensorOptions().device(model.mesh.device()));
  const WaitPlace place("end of a save");
  model.mesh.world().all_reduce(working, Group::Reduce::Max, "save").wait();
  return working.item<float>() == 0;
}

// Ends a phase, on all ranks or on none. True: the checkpoint is published.
bool finish_phase(ShardedModel& model, SaveJob& job, bool in_background) {
  together(model.mesh, model.mesh.world(), "save", [&] { job.finish_phase(); });
  if (job.phase() == SaveJob::Phase::Publishing) {
    job.set_published();
    return true;
  }
  job.publish(gather_text(model.mesh, model.mesh.world(), job.manifest(), "save"), in_background);
  return false;
}

std::filesystem::path published_path(const SaveJob& job) {
  return job.target().directory / job.target().temporary.stem();
}

}  // namespace

std::unique_ptr<SaveJob> begin_save(ShardedModel& model, const StepCounts& counts,
                                    const std::filesystem::path& directory, const SaveOptions& options,
                                    bool in_background) {
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  const std::string about = engine_metadata(model, counts, options).dump();
  auto job =
      std::make_unique<SaveJob>(SaveJob::Target{.directory = directory,
                                                .temporary = begin_together(model, counts.steps, directory),
                                                .step = counts.steps,
                                                .metadata = about,
                                                .keep_last = options.keep_last},
                                model.mesh.rank());
  // States on disk are read as they are written: a copy would be all of them in memory.
  const bool copies = in_background && model.states.disk() == nullptr;
  job->write(take_snapshot(model, copies, options.frozen_from.empty()), copies);
  return job;
}

std::filesystem::path save(ShardedModel& model, const StepCounts& counts,
                           const std::filesystem::path& directory, const SaveOptions& options) {
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  const auto job = begin_save(model, counts, directory, options, /*in_background=*/false);
  while (!finish_phase(model, *job, /*in_background=*/false)) {
  }
  return published_path(*job);
}

std::optional<std::filesystem::path> finish_save(ShardedModel& model, std::unique_ptr<SaveJob>& saving,
                                                 bool wait) {
  if (!saving) return std::nullopt;
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  // Let go of whatever happens: an error ends the save.
  std::unique_ptr<SaveJob> job = std::move(saving);
  do {
    if (!wait && !all_are_done(model, *job)) break;
    if (finish_phase(model, *job, /*in_background=*/true)) return published_path(*job);
  } while (wait);
  saving = std::move(job);
  return std::nullopt;
}

}  // namespace zero::detail

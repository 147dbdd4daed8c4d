// Engine::save, begin_save and finish_save: what ranks agree on while a SaveJob writes.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <nlohmann/json.hpp>

#include "checkpoint/json.h"
#include "engine/agree.h"
#include "engine/checkpoint_parts.h"
#include "engine/engine_state.h"
#include "engine/frozen.h"
#include "engine/save_job.h"
#include "engine/snapshot.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using Json = nlohmann::json;

Json engine_metadata(EngineState& state, const SaveOptions& options) {
  Json user = Json::parse(options.metadata, nullptr, false);
  require(user.is_object(), ErrorKind::Usage, "save", "metadata must be a JSON object");
  Json steps = Json::object();
  const std::vector<int64_t> taken = state.model.optimizer->parameter_steps();
  for (size_t i = 0; i < taken.size(); ++i) steps[state.model.names()[i]] = taken[i];
  Json engine = {
      {"format", kEngineFormat}, {"ranks", state.model.all.size()},      {"stage", state.model.options.stage},
      {"steps", state.steps},    {"skipped_steps", state.skipped_steps}, {"parameter_steps", steps}};
  if (!options.frozen_from.empty()) {
    engine["frozen_from"] = options.frozen_from;
    engine["frozen"] = Json::object();
    for (const auto& [name, fingerprint] : frozen_fingerprints(state))
      engine["frozen"][name] = checkpoint::to_hex(fingerprint);
  }
  return {{"engine", engine}, {"user", user}};
}

// Rank 0 makes the temporary directory and tells the others its name.
std::filesystem::path begin_together(EngineState& state, const std::filesystem::path& directory) {
  const ShardedModel& model = state.model;
  std::filesystem::path temporary;
  try {
    together(model.mesh, model.all, "save", [&] {
      if (model.all.rank() == 0) temporary = CheckpointWriter::begin(directory, state.steps);
    });
    const std::string mine = temporary.empty() ? "" : std::to_string(CheckpointWriter::save_id(temporary));
    const std::string id = gather_text(model.mesh, model.all, mine, "save")[0];
    return CheckpointWriter::temporary_path(directory, state.steps, std::stoull(id));
  } catch (...) {
    if (!temporary.empty()) CheckpointWriter::abandon(temporary);
    throw;
  }
}

// Whether the phase is over on all ranks. Waits for nobody.
bool all_are_done(const EngineState& state, const SaveJob& job) {
  at::Tensor working =
      at::full({1}, job.is_working() ? 1.0f : 0.0f, at::TensorOptions().device(state.model.mesh.device()));
  state.model.all.all_reduce(working, Group::Reduce::Max, "save").wait();
  return working.item<float>() == 0;
}

// Ends a phase, on all ranks or on none. True: the checkpoint is published.
bool finish_phase(EngineState& state, SaveJob& job, bool in_background) {
  const ShardedModel& model = state.model;
  together(model.mesh, model.all, "save", [&] { job.finish_phase(); });
  if (job.phase() == SaveJob::Phase::Publishing) {
    job.set_published();
    return true;
  }
  job.publish(gather_text(model.mesh, model.all, job.manifest(), "save"), in_background);
  return false;
}

std::unique_ptr<SaveJob> begin(EngineState& state, const std::filesystem::path& directory,
                               const SaveOptions& options, bool in_background) {
  state.rethrow_deferred();
  require(state.micro_step == 0, ErrorKind::Usage, "save", "called between backward() and step()",
          "save after step()");
  require(!state.saving, ErrorKind::Usage, "save", "another save is under way", "call finish_save() first");
  const std::string about = engine_metadata(state, options).dump();
  auto job = std::make_unique<SaveJob>(SaveJob::Target{.directory = directory,
                                                       .temporary = begin_together(state, directory),
                                                       .step = state.steps,
                                                       .metadata = about,
                                                       .keep_last = options.keep_last},
                                       state.model.all.rank());
  job->write(take_snapshot(state, in_background, options.frozen_from.empty()), in_background);
  return job;
}

std::filesystem::path published_path(const SaveJob& job) {
  return job.target().directory / job.target().temporary.stem();
}

}  // namespace

std::filesystem::path save(EngineState& state, const std::filesystem::path& directory,
                           const SaveOptions& options) {
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  const auto job = begin(state, directory, options, /*in_background=*/false);
  while (!finish_phase(state, *job, /*in_background=*/false)) {
  }
  return published_path(*job);
}

void begin_save(EngineState& state, const std::filesystem::path& directory, const SaveOptions& options) {
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  state.saving = begin(state, directory, options, /*in_background=*/true);
}

std::optional<std::filesystem::path> finish_save(EngineState& state, bool wait) {
  if (!state.saving) return std::nullopt;
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  // Let go of whatever happens: an error ends the save.
  std::unique_ptr<SaveJob> job = std::move(state.saving);
  do {
    if (!wait && !all_are_done(state, *job)) break;
    if (finish_phase(state, *job, /*in_background=*/true)) return published_path(*job);
  } while (wait);
  state.saving = std::move(job);
  return std::nullopt;
}

}  // namespace zero::detail

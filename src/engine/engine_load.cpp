// Engine::load: every rank reads the ranges it holds, whatever the ranks and the stage that saved them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include "engine/agree.h"
#include "engine/checkpoint_parts.h"
#include "engine/engine_state.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using Json = nlohmann::json;

// Reads a piece of a stored tensor into `into`, converting where the stored dtype differs.
void read_into(const CheckpointReader& reader, const std::string& name, int64_t begin,
               const at::Tensor& into) {
  const StoredTensor& stored = reader.tensors().at(name);
  at::Tensor values = at::empty({into.numel()}, scalar_type_of(stored.dtype));
  reader.read(name, begin, into.numel(), values.mutable_data_ptr());
  into.view({-1}).copy_(values);
}

const StoredTensor& stored(const CheckpointReader& reader, const std::string& name,
                           const std::vector<int64_t>& shape) {
  auto found = reader.tensors().find(name);
  require(found != reader.tensors().end(), ErrorKind::Config, name, "the checkpoint does not hold it",
          "load it into the model and optimizer it was made with");
  require(found->second.shape == shape, ErrorKind::Config, name,
          "the checkpoint has shape " + c10::str(at::IntArrayRef(found->second.shape)) + ", the model " +
              c10::str(at::IntArrayRef(shape)));
  return found->second;
}

// A generator that the checkpoint does not know goes on as it is.
void restore_generator(const CheckpointReader& reader, const std::string& name, at::Generator generator) {
  const auto found = reader.tensors().find(name);
  if (found == reader.tensors().end()) return;
  require(found->second.dtype == Dtype::u8 && found->second.shape.size() == 1, ErrorKind::Corrupt, name,
          "it is no generator state");
  const at::Tensor state = at::empty(found->second.shape, at::kByte);
  reader.read(name, 0, state.numel(), state.mutable_data_ptr());
  generator.set_state(state);
}

}  // namespace

std::string load(EngineState& state, const std::filesystem::path& checkpoint) {
  ShardedModel& model = state.model;
  state.rethrow_deferred();
  require(state.micro_step == 0, ErrorKind::Usage, "load", "called between backward() and step()",
          "load before the first forward()");
  model.residency->require_no_pins();
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  Json about;
  std::vector<int64_t> steps;
  together(model.mesh, model.all, "load", [&] {
    const CheckpointReader reader(checkpoint);
    about = Json::parse(reader.metadata(), nullptr, false);
    require(about.is_object() && about.contains("engine") && about["engine"].is_object() &&
                about["engine"].value("format", 0) == kEngineFormat,
            ErrorKind::Corrupt, checkpoint.string(), "it was not written by this engine");
    const std::vector<Part> wanted = parts_of(state, /*share_among_replicas=*/false);
    for (const Part& part : wanted) stored(reader, part.name, part.shape);
    for (const std::string& name : model.names()) {
      const Json& taken = about["engine"]["parameter_steps"];
      require(taken.contains(name) && taken[name].is_number_integer(), ErrorKind::Corrupt,
              checkpoint.string(), "no step count of " + name);
      steps.push_back(taken[name].get<int64_t>());
    }
    const bool same_ranks = about["engine"].value("ranks", 0) == model.all.size();
    auto buffer_name = [&](const std::string& name) {
      const std::string own = own_prefix(model) + "buffer/" + name;
      return same_ranks && reader.tensors().contains(own) ? own : "buffer/" + name;
    };
    for (const auto& [name, buffer] : model.buffers) stored(reader, buffer_name(name), buffer.sizes().vec());

    // Everything fits: from here on values change.
    model.optimizer->set_parameter_steps(steps);
    for (const Part& part : wanted) read_into(reader, part.name, part.begin, part.values);
    for (const Unit& unit : model.units)
      if (unit.master.defined() && !unit.master.is_alias_of(unit.shard)) unit.shard.copy_(unit.master);
    for (const auto& [name, buffer] : model.buffers) read_into(reader, buffer_name(name), 0, buffer);
    if (same_ranks) {
      restore_generator(reader, own_prefix(model) + "random", at::detail::getDefaultCPUGenerator());
      if (model.mesh.device().is_cuda())
        restore_generator(reader, own_prefix(model) + "random_cuda",
                          at::globalContext().defaultGenerator(model.mesh.device()));
    }
    state.steps = about["engine"].value("steps", int64_t{0});
    state.loaded_bytes += reader.bytes_read();
    state.skipped_steps = about["engine"].value("skipped_steps", int64_t{0});
  });
  model.residency->values_changed(/*frozen_too=*/true);
  return about.value("user", Json::object()).dump();
}

}  // namespace zero::detail

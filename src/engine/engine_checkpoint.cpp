// What a checkpoint holds, by name:
//   model/PARAMETER                fp32 master values of trainable parameters; frozen ones in their own dtype
//   optimizer/KIND/PARAMETER       fp32
//   buffer/BUFFER                  rank 0's
//   rank/R/buffer/BUFFER, rank/R/random   every rank's own, for a resume with the same number of ranks
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "engine/engine_state.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using Json = nlohmann::json;
constexpr int kFormat = 1;

/// One parameter's part of one kind of values on this rank.
struct Part {
  std::string name;            // in the checkpoint
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t begin = 0;           // first element inside the flattened parameter
  at::Tensor values;           // [numel], a view of the shard
};

// Runs a phase on every rank and lets all of them fail if one does, with the first failing rank's words.
void together(const Mesh& mesh, const Group& all, const std::string& what,
              const std::function<void()>& phase) {
  constexpr int64_t kTextBytes = 512;
  at::Tensor mine = at::zeros({kTextBytes}, at::kByte);
  std::exception_ptr own;
  try {
    phase();
  } catch (const std::exception& error) {
    own = std::current_exception();
    const std::string text = std::string(error.what()).substr(0, kTextBytes - 1);
    std::copy(text.begin(), text.end(), mine.data_ptr<uint8_t>());
  }
  at::Tensor every = at::empty({all.size() * kTextBytes}, at::TensorOptions(at::kByte).device(mesh.device()));
  all.all_gather(every, mine.to(mesh.device()), what).wait();
  if (own) std::rethrow_exception(own);
  every = every.cpu();
  for (int rank = 0; rank < all.size(); ++rank) {
    const auto* text = reinterpret_cast<const char*>(every.data_ptr<uint8_t>()) + rank * kTextBytes;
    if (*text != 0) fail(ErrorKind::Io, what, "rank " + std::to_string(rank) + " failed: " + text);
  }
}

// Every rank's text on every rank.
std::vector<std::string> gather_text(const Mesh& mesh, const Group& all, const std::string& text) {
  const auto bytes = at::TensorOptions(at::kByte).device(mesh.device());
  at::Tensor sizes = at::empty({all.size()}, at::TensorOptions(at::kLong).device(mesh.device()));
  all.all_gather(sizes, at::tensor({static_cast<int64_t>(text.size())}, at::kLong).to(mesh.device()),
                 "text size")
      .wait();
  const int64_t longest = std::max<int64_t>(1, sizes.max().item<int64_t>());
  at::Tensor mine = at::zeros({longest}, at::kByte);
  std::copy(text.begin(), text.end(), mine.data_ptr<uint8_t>());
  at::Tensor every = at::empty({all.size() * longest}, bytes);
  all.all_gather(every, mine.to(mesh.device()), "text").wait();
  every = every.cpu();
  sizes = sizes.cpu();
  std::vector<std::string> texts;
  texts.reserve(static_cast<size_t>(all.size()));
  for (int rank = 0; rank < all.size(); ++rank)
    texts.emplace_back(reinterpret_cast<const char*>(every.data_ptr<uint8_t>()) + rank * longest,
                       static_cast<size_t>(sizes.data_ptr<int64_t>()[rank]));
  return texts;
}

// The parts of all parameters in this rank's shards. With replicas, each of them saves its share of what they
// all hold.
std::vector<Part> parts(EngineState& state, bool share_among_replicas) {
  ShardedModel& model = state.model;
  std::vector<Part> result;
  std::vector<OptimizerState> kinds = model.optimizer->state();
  const int64_t replicas = share_among_replicas ? model.replica_group.size() : 1;
  const int64_t replica = share_among_replicas ? model.replica_group.rank() : 0;
  auto add = [&](const std::string& prefix, int unit, const at::Tensor& shard) {
    for (const ShardSegment& segment : model.segments(unit)) {
      const int64_t from = segment.numel() * replica / replicas,
                    to = segment.numel() * (replica + 1) / replicas;
      if (from == to) continue;
      const auto place = model.place_of(segment.name);
      result.push_back({prefix + segment.name,
                        model.layout(unit).parameters[static_cast<size_t>(place.parameter)].shape,
                        segment.parameter_begin + from, shard.narrow(0, segment.begin + from, to - from)});
    }
  };
  for (size_t u = 0; u < model.units.size(); ++u) {
    const Unit& unit = model.units[u];
    add("model/", static_cast<int>(u), unit.master.defined() ? unit.master : unit.shard);
  }
  for (const OptimizerState& kind : kinds)
    add("optimizer/" + kind.name + "/", model.trainable[static_cast<size_t>(kind.shard)], kind.values);
  return result;
}

TensorPiece whole_piece(const std::string& name, const at::Tensor& tensor) {
  return {name,           dtype_of(tensor.scalar_type()), tensor.sizes().vec(), 0,
          tensor.numel(), tensor.const_data_ptr()};
}

std::string own_prefix(const ShardedModel& model) { return "rank/" + std::to_string(model.all.rank()) + "/"; }

Json engine_metadata(EngineState& state, const std::string& metadata) {
  Json user = Json::parse(metadata, nullptr, false);
  require(user.is_object(), ErrorKind::Usage, "save", "metadata must be a JSON object");
  Json steps = Json::object();
  const std::vector<int64_t> taken = state.model.optimizer->parameter_steps();
  for (size_t i = 0; i < taken.size(); ++i) steps[state.model.names()[i]] = taken[i];
  return {{"engine",
           {{"format", kFormat},
            {"ranks", state.model.all.size()},
            {"stage", state.model.options.stage},
            {"steps", state.steps},
            {"skipped_steps", state.skipped_steps},
            {"parameter_steps", steps}}},
          {"user", user}};
}

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

}  // namespace

std::filesystem::path save(EngineState& state, const std::filesystem::path& directory,
                           const std::string& metadata, int keep_last) {
  ShardedModel& model = state.model;
  state.rethrow_deferred();
  require(state.micro_step == 0, ErrorKind::Usage, "save", "called between backward() and step()",
          "save after step()");
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  const std::string about = engine_metadata(state, metadata).dump();

  std::filesystem::path temporary, published;
  try {
    together(model.mesh, model.all, "save", [&] {
      if (model.all.rank() == 0) temporary = CheckpointWriter::begin(directory, state.steps);
    });
    const std::string id =
        gather_text(model.mesh, model.all,
                    temporary.empty() ? "" : std::to_string(CheckpointWriter::save_id(temporary)))[0];
    temporary = CheckpointWriter::temporary_path(directory, state.steps, std::stoull(id));

    ShardManifest manifest;
    together(model.mesh, model.all, "save", [&] {
      std::vector<at::Tensor> alive;  // copies on the CPU must outlive the write
      std::vector<TensorPiece> pieces;
      auto keep = [&](const at::Tensor& tensor) { return alive.emplace_back(tensor.cpu().contiguous()); };
      for (const Part& part : parts(state, /*share_among_replicas=*/true)) {
        const at::Tensor values = keep(part.values);
        pieces.push_back({part.name, dtype_of(values.scalar_type()), part.shape, part.begin, values.numel(),
                          values.const_data_ptr()});
      }
      for (const auto& [name, buffer] : model.buffers) {
        if (model.all.rank() == 0) pieces.push_back(whole_piece("buffer/" + name, keep(buffer)));
        pieces.push_back(whole_piece(own_prefix(model) + "buffer/" + name, keep(buffer)));
      }
      pieces.push_back(
          whole_piece(own_prefix(model) + "random", keep(at::detail::getDefaultCPUGenerator().get_state())));
      manifest = CheckpointWriter::write_shard(temporary, model.all.rank(), pieces);
    });
    const std::vector<std::string> manifests = gather_text(model.mesh, model.all, to_text(manifest));
    together(model.mesh, model.all, "save", [&] {
      if (model.all.rank() != 0) return;
      std::vector<ShardManifest> every;
      every.reserve(manifests.size());
      for (const std::string& text : manifests) every.push_back(manifest_from_text(text));
      published = CheckpointWriter::publish(temporary, directory, state.steps, every, about, keep_last);
    });
  } catch (...) {
    if (model.all.rank() == 0 && !temporary.empty()) CheckpointWriter::abandon(temporary);
    throw;
  }
  return gather_text(model.mesh, model.all, published.string())[0];
}

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
                about["engine"].value("format", 0) == kFormat,
            ErrorKind::Corrupt, checkpoint.string(), "it was not written by this engine");
    const std::vector<Part> wanted = parts(state, /*share_among_replicas=*/false);
    for (const Part& part : wanted) stored(reader, part.name, part.shape);
    for (const std::string& name : model.names()) {
      const Json& taken = about["engine"]["parameter_steps"];
      require(taken.contains(name) && taken[name].is_number_integer(), ErrorKind::Corrupt,
              checkpoint.string(), "no step count of " + name);
      steps.push_back(taken[name].get<int64_t>());
    }
    const bool same_ranks = about["engine"].value("ranks", 0) == model.all.size();
    auto buffer_name = [&](const std::string& name) {
      return (same_ranks ? own_prefix(model) : "") + "buffer/" + name;
    };
    for (const auto& [name, buffer] : model.buffers) stored(reader, buffer_name(name), buffer.sizes().vec());

    // Everything fits: from here on values change.
    model.optimizer->set_parameter_steps(steps);
    for (const Part& part : wanted) read_into(reader, part.name, part.begin, part.values);
    for (const Unit& unit : model.units)
      if (unit.master.defined() && !unit.master.is_alias_of(unit.shard)) unit.shard.copy_(unit.master);
    for (const auto& [name, buffer] : model.buffers) read_into(reader, buffer_name(name), 0, buffer);
    if (same_ranks && reader.tensors().contains(own_prefix(model) + "random")) {
      at::Tensor random = at::empty(reader.tensors().at(own_prefix(model) + "random").shape, at::kByte);
      reader.read(own_prefix(model) + "random", 0, random.numel(), random.mutable_data_ptr());
      at::Generator generator = at::detail::getDefaultCPUGenerator();
      generator.set_state(random);
    }
    state.steps = about["engine"].value("steps", int64_t{0});
    state.skipped_steps = about["engine"].value("skipped_steps", int64_t{0});
  });
  model.residency->values_changed(/*frozen_too=*/true);
  return about.value("user", Json::object()).dump();
}

}  // namespace zero::detail

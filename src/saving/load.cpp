// Every rank reads the ranges it holds, whatever the ranks and the stage that saved them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "checkpoint/json.h"
#include "checkpoint/left_out.h"
#include "checkpoint/names.h"
#include "mesh/agree.h"
#include "optim/split_master.h"
#include "saving/checkpoint_parts.h"
#include "saving/frozen.h"
#include "saving/saving.h"
#include "sharding/sharded_model.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// Reads a range of a stored tensor into `into`, converting where the stored dtype differs.
void read_into(const CheckpointReader& reader, const std::string& name, const BoxRange& range,
               const at::Tensor& into) {
  const at::ScalarType type = scalar_type_of(reader.tensors().at(name).dtype);
  if (into.is_cpu() && into.is_contiguous() && into.scalar_type() == type)
    return reader.read(name, range, into.mutable_data_ptr());
  at::Tensor values = at::empty({into.numel()}, type);
  reader.read(name, range, values.mutable_data_ptr());
  into.view({-1}).copy_(values);
}

// The boxes of a part that holds several, one by one.
void read_joined(const CheckpointReader& reader, const Part& part, const PartValues& into) {
  const at::Tensor values = at::empty({part.numel()}, part.dtype);
  for (const PartPiece& piece : part.pieces) {
    const at::Tensor read = at::empty({piece.range.numel}, part.dtype);
    read_into(reader, part.name, piece.range, read);
    put_piece(read, piece, values);
  }
  if (part.is_split)
    split_master(values.to(into.values.device()), into.values, into.remainder);
  else
    at::Tensor(into.values).copy_(values);
}

// The fp32 values of a split master, a piece at a time: whole checksum blocks where the parts are those that
// were saved.
void read_split(const CheckpointReader& reader, const Part& part, const PartValues& into) {
  constexpr int64_t kPieceNumel = int64_t{4} << 20;
  const at::Tensor buffer =
      at::empty({std::min(kPieceNumel, part.numel())}, into.values.options().dtype(at::kFloat));
  for (int64_t at = 0; at < part.numel(); at += kPieceNumel) {
    const int64_t count = std::min(kPieceNumel, part.numel() - at);
    const at::Tensor piece = buffer.narrow(0, 0, count);
    read_into(reader, part.name, part.range().part(at, count), piece);
    split_master(piece, into.values.narrow(0, at, count), into.remainder.narrow(0, at, count));
  }
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
  reader.read(name, BoxRange::whole(found->second.shape), state.mutable_data_ptr());
  generator.set_state(state);
}

std::optional<LossScaleState> loss_scale_of(const JsonPlace& saved) {
  if (saved.is_null()) return {};
  const JsonPlace scale = saved["scale"];
  if (!scale.value().is_number() || !(scale.value().get<double>() > 0)) scale.expected("a number > 0");
  return LossScaleState{.scale = scale.value().get<double>(),
                        .steps = saved["steps"].count(),
                        .clean_steps = saved["clean_steps"].count(),
                        .hysteresis = static_cast<int>(saved["hysteresis"].integer(1 << 30))};
}

// What a checkpoint's metadata say, checked.
struct Saved {
  int64_t ranks = 0, steps = 0, skipped_steps = 0;
  std::optional<LossScaleState> loss_scale;
  std::vector<int64_t> parameter_steps;
  std::optional<checkpoint::LeftOut> left_out;
  std::string user;
};

Saved read_saved(const ShardedModel& model, const CheckpointReader& reader, const std::string& place) {
  using namespace checkpoint;
  const checkpoint::Json about = parse_object(reader.metadata(), place);
  require(about.contains("engine") && about["engine"].is_object() &&
              about["engine"].value("format", checkpoint::Json()) == kEngineFormat,
          ErrorKind::Corrupt, place, "it was not written by this engine");
  const JsonPlace engine = JsonPlace(about, place)["engine"];
  Saved saved{.ranks = engine["ranks"].count(),
              .steps = engine["steps"].count(),
              .skipped_steps = engine["skipped_steps"].count(),
              .loss_scale = loss_scale_of(engine["loss_scale"]),
              .parameter_steps = {},
              .left_out = left_out_of(engine),
              .user = about.value("user", checkpoint::Json::object()).dump()};
  const JsonPlace taken = engine["parameter_steps"];
  taken.require_object();
  for (const std::string& name : model.names()) saved.parameter_steps.push_back(taken[name].count());
  return saved;
}

// Of a checkpoint without frozen parameters: the model's own must be those that it was trained with.
void require_same_frozen(ShardedModel& model, const Saved& saved, const std::string& place) {
  if (!saved.left_out) return;
  const auto& expected = saved.left_out->fingerprints;
  for (const auto& [name, fingerprint] : frozen_fingerprints(model)) {
    const auto found = expected.find(name);
    require(found != expected.end() && found->second == fingerprint, ErrorKind::Config, place,
            "the frozen parameter " + name +
                " is not the one that this checkpoint was trained with, and the "
                "checkpoint does not hold it",
            "begin with " + saved.left_out->from);
  }
}

/// Where each of this rank's values comes from.
struct Sources {
  std::vector<std::string> buffers;  // names, in the model's order
  bool same_ranks = false;
};

Sources find_sources(ShardedModel& model, const CheckpointReader& reader, const Saved& saved) {
  Sources sources{.buffers = {}, .same_ranks = saved.ranks == model.mesh.size()};
  for (const Part& part : parts_of(model, /*share_among_replicas=*/false))
    if (!saved.left_out || !is_frozen(model, part.name)) stored(reader, part.name, part.shape);
  for (const auto& [name, buffer] : model.buffers) {
    const std::string plain = std::string(checkpoint::kBufferPrefix) + name, own = own_prefix(model) + plain;
    sources.buffers.push_back(sources.same_ranks && reader.tensors().contains(own) ? own : plain);
    stored(reader, sources.buffers.back(), buffer.sizes().vec());
  }
  return sources;
}

void read_all_values(ShardedModel& model, const CheckpointReader& reader, const Saved& saved,
                     const Sources& sources) {
  model.optimizer->set_parameter_steps(saved.parameter_steps);
  for (const Part& part : parts_of(model, /*share_among_replicas=*/false)) {
    if (saved.left_out && is_frozen(model, part.name)) continue;
    const PartValues into = part.borrow(StateStore::Use::Write);
    if (part.is_joined())
      read_joined(reader, part, into);
    else if (part.is_split)
      read_split(reader, part, into);
    else
      read_into(reader, part.name, part.range(), into.values);
  }
  for (Unit& unit : model.units) {
    if (!model.saves_masters) unit.adopt_shard(0, unit.layout.shard_numel);
    if (unit.master != MasterForm::Whole || !model.saves_masters) continue;
    const auto shard = unit.lend_shard(StateStore::Use::Write);
    const auto master = model.states.lend(unit.index, {kMasterState}, StateStore::Use::Read);
    at::Tensor(shard[kParameterState]).copy_(master[kMasterState]);
  }
  for (size_t i = 0; i < model.buffers.size(); ++i)
    read_into(reader, sources.buffers[i], BoxRange::whole(model.buffers[i].second.sizes()),
              model.buffers[i].second);
  if (sources.same_ranks) {
    restore_generator(reader, own_prefix(model) + "random", at::detail::getDefaultCPUGenerator());
    if (!model.mesh.device().is_cpu())
      restore_generator(reader, own_prefix(model) + device_random_name(model),
                        at::globalContext().defaultGenerator(model.mesh.device()));
  }
}

}  // namespace

Loaded load(ShardedModel& model, const std::filesystem::path& checkpoint) {
  model.residency->require_no_pins();
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  std::optional<CheckpointReader> reader;
  Saved saved;
  Sources sources;
  together(model.mesh, model.mesh.world(), "load", [&] {
    reader.emplace(checkpoint);
    saved = read_saved(model, *reader, checkpoint.string());
    sources = find_sources(model, *reader, saved);
  });
  require_same_frozen(model, saved, checkpoint.string());
  // Everything fits on every rank: from here on values change.
  model.residency->finish_fetches();
  together(model.mesh, model.mesh.world(), "load", [&] { read_all_values(model, *reader, saved, sources); });
  model.residency->values_changed(/*frozen_too=*/true);
  return {
      .counts = {.steps = saved.steps, .skipped_steps = saved.skipped_steps, .loss_scale = saved.loss_scale},
      .bytes = reader->bytes_read(),
      .metadata = saved.user};
}

}  // namespace zero::detail

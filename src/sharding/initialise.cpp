#include "sharding/initialise.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/part_pieces.h"
#include "compute/memory_purpose.h"
#include "compute/wait_place.h"
#include "mesh/group_parts.h"
#include "sharding/sharded_model.h"
#include "zero/initial_values.h"
#include "zero/lazy.h"
#include "zero/torch_dtype.h"

namespace zero::detail {
namespace {

using NamedBuffers = std::vector<std::pair<std::string, at::Tensor>>;

// Piece by piece through shared memory where there is some: a copy of a whole parameter would be the peak.
void take_from_rank0(const Group& all, const at::Tensor& values, const std::string& name) {
  const WaitPlace place("initial values");
  const at::Tensor bytes = values.view({-1}).view(at::kByte);
  constexpr int64_t kPieceBytes = 4 << 20;
  if (bytes.numel() == 0) return;
  if (!all.shares_memory()) return all.broadcast(bytes, 0, name).wait();
  const at::Tensor piece = input_tensor(all, std::min(kPieceBytes, bytes.numel()), at::kByte);
  for (int64_t begin = 0; begin < bytes.numel(); begin += kPieceBytes) {
    at::Tensor part = bytes.narrow(0, begin, std::min(kPieceBytes, bytes.numel() - begin));
    at::Tensor wire = all.rank() == 0 ? piece.narrow(0, 0, part.numel()) : part;
    if (all.rank() == 0) wire.copy_(part);
    all.broadcast(wire, 0, name).wait();  // on rank 0: until all have read the piece
  }
}

class Initialiser {
 public:
  Initialiser(ShardedModel& model, const NamedBuffers& module_buffers)
      : model_(model),
        elsewhere_(model.options.initial_values.get()),
        sent_(model.options.broadcast_initial_values && model.all.size() > 1),
        module_buffers_(module_buffers),
        drawn_(model.units.size()) {}

  void take_module_values();
  void take_values_from_elsewhere();
  void give_buffers_to_module();

 private:
  bool comes_from_elsewhere(int parameter) const {
    return elsewhere_ != nullptr && elsewhere_->holds(name(parameter));
  }
  const std::string& name(int parameter) const { return model_.names()[parameter]; }
  ElementRange part_looked_at(int parameter) const;
  void take_from_first_along_other_axes(int parameter, const at::Tensor& value);
  void take_parameter(int parameter, const at::Tensor& value);
  void take_buffer(size_t index, const at::Tensor& value, const at::Tensor& found);
  void take_bits_of_first_replica();
  void read_values(int parameter);
  void read_piece(int parameter, int64_t begin, const at::Tensor& out) const;
  void make_views(int parameter);

  ShardedModel& model_;
  const InitialValues* elsewhere_;
  bool sent_;  // rank 0's values go to all
  const NamedBuffers& module_buffers_;
  std::vector<char> drawn_;  // per unit: has values of the module's
};

// Takes every parameter's and buffer's value, one at a time, and lets go of it.
void Initialiser::take_module_values() {
  std::vector<at::Tensor> wanted;
  std::vector<ElementRange> parts;
  std::vector<int> parameters;  // the first of `wanted`; buffers follow
  for (int i = 0; i < model_.parameter_count(); ++i) {
    if (comes_from_elsewhere(i)) continue;
    wanted.push_back(model_.tensors_of(i).front());
    parts.push_back(part_looked_at(i));
    parameters.push_back(i);
  }
  for (const auto& [name, buffer] : module_buffers_) {
    wanted.push_back(buffer);
    parts.push_back({0, buffer.numel()});
  }
  model_.buffers.resize(module_buffers_.size());
  replay(wanted, parts, [&](size_t index, const at::Tensor& found) {
    const bool is_parameter = index < parameters.size();
    const size_t buffer = index - parameters.size();
    const MemoryPurposeScope purpose(is_parameter ? MemoryPurpose::Unsaid : MemoryPurpose::Buffers);
    at::Tensor value = found.detach().contiguous().to(model_.mesh.device());
    // Straight into the found memory: it is the engine's now, and about to be let go.
    if (is_parameter) take_from_first_along_other_axes(parameters[index], value);
    if (sent_)
      take_from_rank0(model_.all, value,
                      is_parameter ? name(parameters[index]) : module_buffers_[buffer].first);
    if (is_parameter)
      take_parameter(parameters[index], value);
    else
      take_buffer(buffer, value, found);
  });
  if (!model_.options.broadcast_initial_values) take_bits_of_first_replica();
}

// Of what ranks along other axes than "dp" hold alike, the first one's values go to all.
void Initialiser::take_from_first_along_other_axes(int parameter, const at::Tensor& value) {
  if (!model_.options.broadcast_initial_values || model_.all.rank() != 0) return;
  for (const std::string& axis : model_.spot_of(parameter).part.replicated_over) {
    const Group along = model_.mesh.group(axis);
    if (along.size() > 1) take_from_rank0(along, value, name(parameter));
  }
}

void Initialiser::take_parameter(int parameter, const at::Tensor& value) {
  const UnitParameter& spot = model_.spot_of(parameter);
  Unit& unit = model_.unit_of(parameter);
  drawn_[model_.place_of(parameter).unit] = 1;
  if (spot.numel > 0) {
    const at::Tensor flat = value.view({-1});
    if (unit.owns_whole()) unit.full.narrow(0, spot.offset, spot.numel).copy_(flat);
    for (const ShardSegment& segment : model_.segments_of_parameter(parameter))
      unit.set_values(segment.begin, flat.narrow(0, segment.parameter_begin, segment.numel()));
  }
  make_views(parameter);
}

void Initialiser::take_buffer(size_t index, const at::Tensor& value, const at::Tensor& found) {
  auto& [name, buffer] = model_.buffers[index];
  name = module_buffers_[index].first;
  const auto dtype = model_.options.buffer_dtype ? model_.options.buffer_dtype : model_.options.dtype;
  buffer = value.is_floating_point() && dtype ? value.to(scalar_type_of(*dtype)) : value;
  if (buffer.is_alias_of(found)) buffer = buffer.clone();
}

// Ranks that keep the same values for good must have the same bits, whatever processor computed them.
void Initialiser::take_bits_of_first_replica() {
  if (model_.replica_group.size() == 1) return;
  for (size_t u = 0; u < model_.units.size(); ++u) {
    const Unit& unit = model_.units[u];
    if (!drawn_[u]) continue;
    const auto lease = unit.lend_values(StateStore::Use::Write);
    const auto take = [&](const at::Tensor& values) {
      const at::Tensor wire = values.to(model_.mesh.device());  // which they may not be on
      take_from_rank0(model_.replica_group, wire, unit.layout.name);
      if (!wire.is_same(values)) at::Tensor(values).copy_(wire);
    };
    take(unit.owns_whole() ? unit.full : lease[kParameterState]);
    if (unit.has_own_master()) take(lease[kMasterState]);
  }
}

// What this rank looks at of the module's own values of a parameter.
ElementRange Initialiser::part_looked_at(int parameter) const {
  if (sent_ && model_.all.rank() != 0) return {};
  if (sent_ || model_.unit_of(parameter).owns_whole()) return {0, model_.spot_of(parameter).numel};
  for (const ShardSegment& segment : model_.segments_of_parameter(parameter))
    return {segment.parameter_begin, segment.parameter_begin + segment.numel()};
  return {};
}

// The module's tensors become views of the slab. An eager parameter's own memory is freed here, before the
// next one is looked at.
void Initialiser::make_views(int parameter) {
  for (const at::Tensor& tensor : model_.tensors_of(parameter))
    tensor.set_data(view_of(model_.unit_of(parameter), model_.spot_of(parameter)));
}

void Initialiser::take_values_from_elsewhere() {
  for (int i = 0; i < model_.parameter_count(); ++i) {
    if (!comes_from_elsewhere(i)) continue;
    read_values(i);
    make_views(i);
  }
  model_.options.initial_values = nullptr;  // its files need not stay open
}

// Reads what this rank keeps of a parameter, a piece at a time and nothing twice. Pieces are some blocks of a
// checkpoint long, since of those at its ends a reader needs the whole.
void Initialiser::read_values(int parameter) {
  constexpr int64_t kPieceNumel = 1 << 20;
  Unit& unit = model_.unit_of(parameter);
  const UnitParameter& spot = model_.spot_of(parameter);
  const std::vector<ShardSegment> mine = model_.segments_of_parameter(parameter);
  const at::Tensor buffer = at::empty({std::min(kPieceNumel, spot.numel)}, at::kFloat);
  // Elements [begin, end) of the parameter.
  const auto read = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kPieceNumel) {
      const int64_t stop = std::min(end, at + kPieceNumel);
      const at::Tensor piece = buffer.narrow(0, 0, stop - at);
      read_piece(parameter, at, piece);
      if (unit.owns_whole()) unit.full.narrow(0, spot.offset + at, stop - at).copy_(piece);
      for (const ShardSegment& segment : mine) {
        const int64_t first = std::max(at, segment.parameter_begin);
        const int64_t count = std::min(stop, segment.parameter_begin + segment.numel()) - first;
        if (count <= 0) continue;
        const int64_t target = segment.begin + first - segment.parameter_begin;
        unit.set_values(target, piece.narrow(0, first - at, count));
      }
    }
  };
  if (unit.owns_whole()) return read(0, spot.numel);
  for (const ShardSegment& segment : mine)
    read(segment.parameter_begin, segment.parameter_begin + segment.numel());
}

// Elements of a parameter from `begin` on, box by box where this rank holds several.
void Initialiser::read_piece(int parameter, int64_t begin, const at::Tensor& out) const {
  const ParameterPart& part = model_.spot_of(parameter).part;
  if (part.beside.empty())
    return elsewhere_->read(name(parameter), BoxRange{part.box, begin, out.numel()}, out);
  for (const PartPiece& piece : pieces_of(part, begin, out.numel())) {
    const at::Tensor read = at::empty({piece.range.numel}, out.options());
    elsewhere_->read(name(parameter), piece.range, read);
    piece.for_each_run([&](int64_t at, int64_t in_range, int64_t numel) {
      out.narrow(0, at, numel).copy_(read.narrow(0, in_range, numel));
    });
  }
}

void Initialiser::give_buffers_to_module() {
  for (size_t i = 0; i < model_.buffers.size(); ++i) {
    at::Tensor module_buffer = module_buffers_[i].second;
    module_buffer.set_data(model_.buffers[i].second);
    model_.buffers[i].second = module_buffer;
  }
}

// Every rank has written its part of common memory; of other hosts' parts there is nothing yet.
void share_initial_values(ShardedModel& model) {
  if (model.plan.placements.parameter != Placement::Common) return;
  if (model.common_group.size() == model.shard_group.size())
    return model.shard_group.barrier("initial values");
  for (const Unit& unit : model.units) {
    if (!unit.common.defined()) continue;
    const auto lease = unit.lend_shard(StateStore::Use::Read);
    const WaitPlace place("initial values");
    model.shard_group.all_gather(unit.full, lease[kParameterState], unit.layout.name).wait();
  }
}

}  // namespace

void initialise(ShardedModel& model, const NamedBuffers& module_buffers) {
  Initialiser initialiser(model, module_buffers);
  initialiser.take_module_values();
  initialiser.take_values_from_elsewhere();
  initialiser.give_buffers_to_module();
  share_initial_values(model);
  for (Unit& unit : model.units) {
    if (!unit.full.defined()) continue;
    unit.state = SlabState::Resident;  // built by hand: no all-gather made it so
    unit.expose();
  }
}

}  // namespace zero::detail

#include "saving/checkpoint_parts.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "checkpoint/names.h"
#include "optim/split_master.h"
#include "zero/error.h"

namespace zero::detail {

void PartValues::copy_to(const at::Tensor& out) const {
  if (remainder.defined()) return join_master(values, remainder, out);
  at::Tensor(out).copy_(values);
}

PartValues Part::borrow(StateStore::Use use, int64_t begin, int64_t count) const {
  std::vector<std::string_view> kinds{kind};
  if (is_split) kinds.push_back(kMasterState);
  const StatePiece piece{.unit = where.unit,
                         .begin = where.begin + begin * elements_each,
                         .end = std::min(where.begin + (begin + count) * elements_each, where.end)};
  PartValues result{.lease = std::make_shared<StateStore::Lease>(states->lend(piece, kinds, use)),
                    .values = {}};
  result.values = (*result.lease)[kind];
  if (is_split) result.remainder = (*result.lease)[kMasterState];
  return result;
}

namespace {

/// One of several that hold the same.
struct Share {
  int64_t index = 0, count = 1;
};

// Among the ranks of the mesh that hold the same shard of a parameter: those along the axes that it is
// replicated over, and replicas in the data-parallel group.
Share share_of(const ShardedModel& model, const ParameterPart& part) {
  Share share;
  const auto add = [&](const Group& group) {
    share = {.index = share.index * group.size() + group.rank(), .count = share.count * group.size()};
  };
  for (const std::string& axis : part.replicated_over) add(model.mesh.group(axis));
  add(model.replica_group);
  return share;
}

// One for each block of the flattened parameter.
std::vector<int64_t> shape_of_scales(const std::string& name, const ParameterPart& held, int64_t each) {
  const int64_t numel = c10::multiply_integers(held.global_shape);
  require(held.box.numel() == numel, ErrorKind::Unsupported, name,
          "a rank holds a part of it, and moments in 8 bits are saved of whole parameters only",
          "leave states_8bit off on a mesh with axes beside dp");
  return {(numel + each - 1) / each};
}

// Elements [begin, begin + numel) of a tensor that ranks hold whole.
std::vector<PartPiece> whole_piece(const std::vector<int64_t>& shape, int64_t begin, int64_t numel) {
  return pieces_of({shape, Box::whole(shape), {}}, begin, numel);
}

/// Every rank has them: the first one saves.
bool saves_whole_states(const ShardedModel& model, const std::string& name) {
  const auto place = model.place_of(name);
  const ParameterPart& held = model.layout(place.unit).parameters[static_cast<size_t>(place.parameter)].part;
  if (held.is_copy || model.all.rank() != 0 || model.has_later_part(name)) return false;
  return std::all_of(held.replicated_over.begin(), held.replicated_over.end(),
                     [&](const std::string& axis) { return model.mesh.group(axis).rank() == 0; });
}

Part part_of(ShardedModel& model, const WholeState& one) {
  const int64_t numel = c10::multiply_integers(one.shape);
  return {.name = std::string(checkpoint::kOptimizerPrefix) + one.kind + "/" + one.name,
          .shape = one.shape,
          .pieces = whole_piece(one.shape, 0, numel),
          .states = &model.states,
          .where = {.unit = one.unit, .begin = one.begin, .end = one.begin + numel},
          .kind = one.kind};
}

}  // namespace

at::Tensor taken_piece(const at::Tensor& values, const PartPiece& piece) {
  const at::Tensor taken = at::empty({piece.range.numel}, values.options());
  const auto size = static_cast<int64_t>(values.element_size());
  const auto* from = static_cast<const char*>(values.const_data_ptr());
  auto* to = static_cast<char*>(taken.mutable_data_ptr());
  piece.for_each_run([&](int64_t at, int64_t in_range, int64_t numel) {
    std::memcpy(to + in_range * size, from + at * size, static_cast<size_t>(numel * size));
  });
  return taken;
}

void put_piece(const at::Tensor& piece_values, const PartPiece& piece, const at::Tensor& values) {
  const auto size = static_cast<int64_t>(values.element_size());
  const auto* from = static_cast<const char*>(piece_values.const_data_ptr());
  auto* to = static_cast<char*>(values.mutable_data_ptr());
  piece.for_each_run([&](int64_t at, int64_t in_range, int64_t numel) {
    std::memcpy(to + at * size, from + in_range * size, static_cast<size_t>(numel * size));
  });
}

std::vector<Part> parts_of(ShardedModel& model, bool share_among_replicas) {
  std::vector<Part> result;
  auto add = [&](const std::string& prefix, int unit, const std::string& kind, bool is_split) {
    const auto shape = model.states.lend(unit, {std::string_view(kind)}, StateStore::Use::Shape);
    const int64_t each = model.states.elements_each(unit, kind);
    const at::ScalarType dtype = is_split ? at::kFloat : shape[kind].scalar_type();
    for (const ShardSegment& segment : model.segments(unit)) {
      const auto place = model.place_of(segment.name);
      const ParameterPart& held = model.layout(unit).parameters[static_cast<size_t>(place.parameter)].part;
      if (share_among_replicas && held.is_copy) continue;
      const Share share = share_among_replicas ? share_of(model, held) : Share();
      // In values: each of some elements.
      const int64_t values = (segment.numel() + each - 1) / each;
      const int64_t from = values * share.index / share.count, to = values * (share.index + 1) / share.count;
      if (from == to) continue;
      const int64_t begin = segment.begin + from * each,
                    end = std::min(segment.begin + to * each, segment.end);
      result.push_back({.name = prefix + segment.name,
                        .shape = each == 1 ? held.global_shape : shape_of_scales(segment.name, held, each),
                        .pieces = each == 1 ? pieces_of(held, segment.parameter_begin + from, to - from)
                                            : whole_piece(shape_of_scales(segment.name, held, each),
                                                          segment.parameter_begin / each + from, to - from),
                        .states = &model.states,
                        .where = {.unit = unit, .begin = begin, .end = end},
                        .kind = kind,
                        .is_split = is_split,
                        .dtype = dtype,
                        .elements_each = each});
    }
  };
  for (const Unit& unit : model.units) {
    const bool whole = unit.master == MasterForm::Whole && model.saves_masters;
    add(std::string(checkpoint::kModelPrefix), unit.index,
        std::string(whole ? kMasterState : kParameterState),
        unit.master == MasterForm::Remainder && model.saves_masters);
  }
  for (const int unit : model.trainable)
    for (const std::string& name : model.optimizer->state_names())
      add(std::string(checkpoint::kOptimizerPrefix) + name + "/", unit, name, /*is_split=*/false);
  for (const WholeState& one : model.optimizer->whole_states())
    if (!share_among_replicas || saves_whole_states(model, one.name)) result.push_back(part_of(model, one));
  return result;
}

std::string own_prefix(const ShardedModel& model) {
  return std::string(checkpoint::kRankPrefix) + std::to_string(model.mesh.rank()) + "/";
}

std::string device_random_name(const ShardedModel& model) {
  return "random_" + c10::DeviceTypeName(model.mesh.device().type(), /*lower_case=*/true);
}

}  // namespace zero::detail

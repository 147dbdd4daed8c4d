#include "sharding/unit.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "optim/adafactor.h"
#include "optim/split_master.h"
#include "seam/stack_tensors.h"
#include "sharding/residency.h"
#include "zero/error.h"
#include "zero/torch_dtype.h"

namespace zero::detail {
namespace {

std::string parameter_at(const UnitLayout& layout, int64_t offset) {
  for (const UnitParameter& parameter : layout.parameters)
    if (offset >= parameter.offset && offset < std::max(parameter.end(), parameter.offset + 1))
      return parameter.name;
  return layout.name;
}

// Refuses operators that would change a parameter behind the shards' back.
void refuse_writes(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& formal = op.schema().arguments();
  const size_t base = stack.size() - formal.size();
  auto check = [&](const at::Tensor& tensor) {
    auto* tag = dynamic_cast<UnitTag*>(tag_of(tensor));
    if (tag == nullptr || tag->residency == nullptr) return;
    fail(ErrorKind::Usage, parameter_at(*tag->layout, tensor.storage_offset()),
         "forward or backward writes this parameter in place (" + op.schema().name() + ")",
         "change parameters in a zero::GatherScope with Access::Modify");
  };
  for (size_t i = 0; i < formal.size(); ++i) {
    if (formal[i].alias_info() == nullptr || !formal[i].alias_info()->isWrite()) continue;
    for_each_tensor(stack[base + i], check);
  }
}

}  // namespace

void UnitTag::before(const c10::OperatorHandle& op, OperatorKind kind, const std::vector<StorageTag*>& tags,
                     const torch::jit::Stack& stack) {
  if (kind == OperatorKind::View || (residency == nullptr && tags.size() == 1)) return;
  if (kind != OperatorKind::Reads) refuse_writes(op, stack);
  if (tags.size() == 1) return residency->need({&unit, 1});
  std::vector<std::pair<Residency*, std::vector<int>>> needed;  // an operator may read from several engines
  for (StorageTag* tag : tags) {
    auto* other = dynamic_cast<UnitTag*>(tag);
    if (other == nullptr || other->residency == nullptr) continue;
    auto owner = std::find_if(needed.begin(), needed.end(),
                              [&](const auto& known) { return known.first == other->residency; });
    if (owner == needed.end()) owner = needed.insert(owner, {other->residency, {}});
    owner->second.push_back(other->unit);
  }
  for (const auto& [owner, units] : needed) owner->need(units);
}

void Unit::move_to(SlabState next) {
  using enum SlabState;
  // From row to column: Absent, Stale, Reading, Fetching, Resident.
  static constexpr std::array<std::array<bool, 5>, 5> kLegal{{
      {false, false, true, true, true},    // Absent: fetched, or filled by hand when the model is built
      {false, false, false, true, false},  // Stale: only a fetch makes it current
      {false, false, false, true, false},  // Reading: gathered
      {false, false, false, false, true},  // Fetching: waited for
      {true, true, false, false, false},   // Resident: evicted, or outdated by a step
  }};
  const int from = static_cast<int>(state), to = static_cast<int>(next);
  require(kLegal[from][to], ErrorKind::Internal, layout.name,
          "illegal slab transition " + std::to_string(from) + " -> " + std::to_string(to));
  state = next;
}

at::TensorOptions Unit::options() const {
  return at::TensorOptions(scalar_type_of(layout.dtype)).device(slab.device());
}

at::Tensor Unit::values(const StateStore::Lease& lease) const {
  const at::Tensor& shard = lease[kParameterState];
  if (master == MasterForm::Whole) return lease[kMasterState];
  if (master != MasterForm::Remainder) return shard;
  at::Tensor joined = at::empty(shard.sizes(), shard.options().dtype(at::kFloat));
  join_master(shard, lease[kMasterState], joined);
  return joined;
}

void Unit::set_values(int64_t begin, const at::Tensor& values) {
  static constexpr std::array kKinds{kParameterState, kMasterState};
  const StatePiece where{.unit = index, .begin = begin, .end = begin + values.numel()};
  const auto lease = states->lend(where, kKinds, StateStore::Use::Write);
  const at::Tensor& part = lease[kParameterState];
  if (!has_own_master()) {
    at::Tensor(part).copy_(values);
    return;
  }
  const at::Tensor& beside = lease[kMasterState];
  if (master == MasterForm::Remainder)
    return split_master(values.to(part.device(), at::kFloat).contiguous(), part, beside);
  at::Tensor(part).copy_(values);
  at::Tensor(beside).copy_(values);
}

void Unit::adopt_changes(const at::Tensor& mine) {
  constexpr int64_t kPieceNumel = 1 << 20;  // at a time: the masks take no memory worth counting
  const auto lease = lend_values(StateStore::Use::Write);
  const at::Tensor &shard = lease[kParameterState], &beside = lease[kMasterState];
  const at::Tensor& before = scope.before.defined() ? scope.before : shard;
  const bool copies = !shard_lies_in_full();
  if (!has_own_master()) {
    if (copies) at::Tensor(shard).copy_(mine);
    return;
  }
  for (int64_t begin = 0; begin < shard.numel(); begin += kPieceNumel) {
    const int64_t count = std::min(kPieceNumel, shard.numel() - begin);
    const auto piece = [&](const at::Tensor& of) { return of.narrow(0, begin, count); };
    // Bits, not values: of zeros the sign counts, and a NaN is itself.
    const at::Tensor was = piece(before).to(mine.device());  // either may be on the host
    const at::Tensor changed = piece(mine).view(at::kShort).ne(was.view(at::kShort));
    const at::Tensor here = piece(beside).to(mine.device());
    if (master == MasterForm::Whole)
      piece(beside).copy_(at::where(changed, piece(mine).to(at::kFloat), here));
    else
      piece(beside).copy_(here.masked_fill(changed, 0));
    if (copies) piece(shard).copy_(piece(mine));
  }
}

void Unit::adopt_shard(int64_t begin, int64_t end) {
  if (!has_own_master()) return;
  const auto lease = lend_values(StateStore::Use::Write);
  const at::Tensor beside = lease[kMasterState].narrow(0, begin, end - begin);
  if (master == MasterForm::Remainder)
    beside.zero_();
  else
    beside.copy_(lease[kParameterState].narrow(0, begin, end - begin));
}

bool Unit::keeps_writes() const {
  if (layout.padded_numel == 0) return true;
  return owns_whole() && shard_is_slice && !has_own_master();
}

void Unit::expose() {
  // The storage borrows the memory by holding a reference to `full`.
  attach(*slab.unsafeGetStorageImpl(),
         c10::DataPtr(
             full.data_ptr(), new at::Tensor(full),
             [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, full.device()));
  is_open = true;
}

void Unit::hide() {
  zero::detail::detach(*slab.unsafeGetStorageImpl(), hidden_message(layout));
  is_open = false;
}

std::string hidden_message(const UnitLayout& layout) {
  std::string names;
  for (const UnitParameter& parameter : layout.parameters) {
    if (names.size() > 120) {
      names += ", ...";
      break;
    }
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  return "zero: the values of unit '" + layout.name + "' (" + names +
         ") are not gathered on this rank: read them inside engine.forward() or hold a zero::GatherScope";
}

at::Tensor view_of(const Unit& unit, const UnitParameter& parameter) {
  const c10::DispatchKey backend = c10::computeDispatchKey(std::nullopt, std::nullopt, unit.slab.device());
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(unit.slab), c10::DispatchKeySet(backend),
                                                       unit.options().dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(parameter.offset);
  view.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.shape);
  return view;
}

std::vector<ShardSegment> segments_of(const UnitLayout& layout, int rank, int first_parameter) {
  const int64_t shard_begin = rank * layout.shard_numel, shard_end = shard_begin + layout.shard_numel;
  std::vector<ShardSegment> segments;
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const UnitParameter& parameter = layout.parameters[i];
    const int64_t begin = std::max(parameter.offset, shard_begin), end = std::min(parameter.end(), shard_end);
    if (begin >= end) continue;
    segments.push_back({.name = parameter.name,
                        .parameter = first_parameter + static_cast<int>(i),
                        .group = 0,
                        .begin = begin - shard_begin,
                        .end = end - shard_begin,
                        .parameter_begin = begin - parameter.offset,
                        .counted_begin = begin - shard_begin,
                        .counted_end = end - shard_begin,
                        .dims = static_cast<int>(parameter.shape.size())});
  }
  return segments;
}

void find_matrices(const UnitLayout& layout, int first_parameter, std::span<const int> group_of,
                   std::span<const ParameterGroup> groups, OptimizerShard& shard) {
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const UnitParameter& parameter = layout.parameters[i];
    const int number = first_parameter + static_cast<int>(i);
    const int group = group_of[static_cast<size_t>(number)];
    const bool is_elementwise = group > 0 && groups[static_cast<size_t>(group) - 1].elementwise;
    if (parameter.shape.size() != 2 || parameter.numel == 0 || is_elementwise) continue;
    require(parameter.part.global_shape == parameter.shape, ErrorKind::Unsupported, parameter.name,
            "Muon needs the whole matrix, of which this rank's module has a part",
            "put it into a parameter group with elementwise, or use another optimizer");
    shard.matrices.push_back({.parameter = number,
                              .offset = parameter.offset,
                              .rows = parameter.shape[0],
                              .cols = parameter.shape[1]});
    for (ShardSegment& segment : shard.segments)
      segment.is_matrix = segment.is_matrix || segment.parameter == number;
  }
}

void find_factored(const UnitLayout& layout, int first_parameter, OptimizerShard& shard) {
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const UnitParameter& parameter = layout.parameters[i];
    shard.factored.push_back({.parameter = first_parameter + static_cast<int>(i),
                              .name = parameter.name,
                              .shape = parameter.part.global_shape});
    if (parameter.part.global_shape != parameter.shape)
      adafactor::set_part(parameter.part, shard.factored.back());
  }
}

}  // namespace zero::detail

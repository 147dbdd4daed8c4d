#include "engine/unit.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "engine/residency.h"
#include "optim/split_master.h"
#include "zero/error.h"

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
    if (tag == nullptr) return;
    fail(ErrorKind::Usage, parameter_at(*tag->layout, tensor.storage_offset()),
         "forward or backward writes this parameter in place (" + op.schema().name() + ")",
         "change parameters in a zero::GatherScope with Access::Modify");
  };
  for (size_t i = 0; i < formal.size(); ++i) {
    if (formal[i].alias_info() == nullptr || !formal[i].alias_info()->isWrite()) continue;
    const c10::IValue& value = stack[base + i];
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorList()) check(tensor);
  }
}

}  // namespace

void UnitTag::before(const c10::OperatorHandle& op, OperatorKind kind, const std::vector<StorageTag*>& tags,
                     const torch::jit::Stack& stack) {
  if (residency == nullptr || kind == OperatorKind::View) return;
  if (kind != OperatorKind::Reads) refuse_writes(op, stack);
  if (tags.size() == 1) return residency->need({&unit, 1});
  std::vector<int> units;
  for (StorageTag* tag : tags)
    if (auto* other = dynamic_cast<UnitTag*>(tag); other != nullptr && other->residency == residency)
      units.push_back(other->unit);
  residency->need(units);
}

void Unit::move_to(SlabState next) {
  using enum SlabState;
  // From row to column: Absent, Stale, Fetching, Resident.
  static constexpr std::array<std::array<bool, 4>, 4> kLegal{{
      {false, false, true, true},   // Absent: fetched, or filled by hand when the model is built
      {false, false, true, false},  // Stale: only a fetch makes it current
      {false, false, false, true},  // Fetching: waited for
      {true, true, false, false},   // Resident: evicted, or outdated by a step
  }};
  require(kLegal[static_cast<size_t>(state)][static_cast<size_t>(next)], ErrorKind::Internal, layout.name,
          "illegal slab transition " + std::to_string(static_cast<int>(state)) + " -> " +
              std::to_string(static_cast<int>(next)));
  state = next;
}

bool Unit::has_plain_values() const { return !master.defined() || !is_remainder(master); }

at::Tensor Unit::values(int64_t begin, int64_t count) const {
  if (has_plain_values()) return (master.defined() ? master : shard).narrow(0, begin, count);
  at::Tensor joined = at::empty({count}, master.options().dtype(at::kFloat));
  join_master(shard.narrow(0, begin, count), master.narrow(0, begin, count), joined);
  return joined;
}

void Unit::set_values(int64_t begin, const at::Tensor& values) {
  const int64_t count = values.numel();
  at::Tensor low = shard.narrow(0, begin, count);
  if (!has_plain_values())
    return split_master(values.to(at::kFloat).contiguous(), low, master.narrow(0, begin, count));
  low.copy_(values);
  if (master.defined() && !master.is_alias_of(shard)) master.narrow(0, begin, count).copy_(values);
}

void Unit::adopt_shard() {
  if (!has_plain_values()) {
    master.zero_();
  } else if (master.defined() && !master.is_alias_of(shard)) {
    master.copy_(shard);
  }
}

void Unit::expose() {
  // The storage borrows the memory by holding a reference to `full`.
  attach(*slab.unsafeGetStorageImpl(),
         c10::DataPtr(
             full.data_ptr(), new at::Tensor(full),
             [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, full.device()));
}

void Unit::hide() { zero::detail::detach(*slab.unsafeGetStorageImpl(), hidden_message(layout)); }

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
  auto backend = unit.slab.device().is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  auto view =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(unit.slab), c10::DispatchKeySet(backend),
                                               unit.full.defined() ? unit.full.dtype() : unit.shard.dtype());
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
                        .parameter_begin = begin - parameter.offset});
  }
  return segments;
}

}  // namespace zero::detail

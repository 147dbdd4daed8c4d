#include "sharding/parameter_watch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "compute/wait_place.h"
#include "sharding/value_check.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// torch::load gives a tensor the storage of the one in the file, and keeps its own type: a writing (set_),
// which a storage of another number of bytes betrays.
bool is_misread(const at::Tensor& tensor) {
  const size_t numel = tensor.numel(), bytes = tensor.storage().nbytes();
  return tensor._version() > 0 && tensor.storage_offset() == 0 && tensor.is_contiguous() &&
         bytes != tensor.nbytes() && (bytes == 2 * numel || bytes == 4 * numel || bytes == 8 * numel);
}

at::Tensor own_part(const ShardedModel& model, const Unit& unit) {
  return unit.full.narrow(0, model.shard_group.rank() * unit.layout.shard_numel, unit.layout.shard_numel);
}

}  // namespace

ParameterWatch::ParameterWatch(ShardedModel& model)
    : model_(model), parameters_(model.units.size()), versions_(model.parameter_count()) {
  for (int i = 0; i < model.parameter_count(); ++i) parameters_[model.place_of(i).unit].push_back(i);
  for (int u = 0; u < std::ssize(parameters_); ++u) forget_writes(u);
}

void ParameterWatch::make_views(int parameter) {
  for (const at::Tensor& tensor : model_.tensors_of(parameter))
    if (!is_view(parameter, tensor))
      tensor.set_data(view_of(model_.unit_of(parameter), model_.spot_of(parameter)));
}

bool ParameterWatch::is_view(int parameter, const at::Tensor& tensor) const {
  const Unit& unit = model_.unit_of(parameter);
  const UnitParameter& spot = model_.spot_of(parameter);
  return tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl() == unit.slab.unsafeGetStorageImpl() &&
         tensor.storage_offset() == spot.offset && tensor.sizes() == spot.shape && tensor.is_contiguous();
}

void ParameterWatch::require_views() {
  const BypassIntercept bypass;
  const c10::NoGradGuard no_grad;
  for (int i = 0; i < model_.parameter_count(); ++i) {
    const int index = model_.place_of(i).unit;
    const Unit& unit = model_.unit_of(i);
    const std::vector<at::Tensor>& tensors = model_.tensors_of(i);
    for (size_t t = 0; t < tensors.size(); ++t) {
      const std::string& name = model_.spot_of(i).name;
      if (!is_view(i, tensors[t])) {
        if (unit.scope.modifying > 0) {
          take_in_replaced(index);
          continue;
        }
        make_views(i);
        fail(ErrorKind::Usage, name,
             "its memory was replaced (by set_data, module.to or torch::load) where the engine cannot take "
             "the values over; they are dropped",
             "do it in a zero::GatherScope with Access::Modify");
      }
      int64_t& seen = versions_[i][t];
      if (unit.keeps_writes() || unit.scope.modifying > 0 || tensors[t]._version() == seen) continue;
      seen = tensors[t]._version();
      adopt_written(index, i);
      fail(ErrorKind::Usage, name, "it was written in place where the engine cannot take the values over",
           "do it in a zero::GatherScope with Access::Modify");
    }
  }
}

void ParameterWatch::adopt_written(int unit, int parameter) {
  Unit& written = model_.units[unit];
  if (!written.shard_lies_in_full()) return;  // it is lost
  for (const ShardSegment& segment : model_.segments_of_parameter(parameter))
    written.adopt_shard(segment.begin, segment.end);
}

void ParameterWatch::forget_writes(int unit) {
  for (const int i : parameters_[unit]) {
    std::vector<int64_t>& versions = versions_[i];
    versions.clear();
    for (const at::Tensor& tensor : model_.tensors_of(i)) versions.push_back(tensor._version());
  }
}

// What replaced a parameter, or nothing.
at::Tensor ParameterWatch::replacement_of(int parameter) const {
  const UnitParameter& spot = model_.spot_of(parameter);
  at::Tensor found;
  for (const at::Tensor& tensor : model_.tensors_of(parameter)) {
    if (is_view(parameter, tensor)) continue;
    require(tensor.sizes() == spot.shape && tensor.is_floating_point() && tensor.layout() == at::kStrided,
            ErrorKind::Usage, spot.name,
            "it was replaced by a tensor of shape " + c10::str(tensor.sizes()) + ", " +
                c10::toString(tensor.scalar_type()) + "; expected " + c10::str(at::IntArrayRef(spot.shape)) +
                " of a floating type");
    require(!is_misread(tensor), ErrorKind::Usage, spot.name,
            "torch::load took bytes of another element type for " +
                std::string(c10::toString(tensor.scalar_type())) + ": it does not look at the type",
            "call module.to() with the file's type before, in the scope");
    const at::Tensor value = tensor.detach().to(model_.mesh.device());
    require(!found.defined() || at::equal(found.to(at::kFloat), value.to(at::kFloat)), ErrorKind::Usage,
            spot.name, "the tensors that are tied to it were replaced by different values");
    found = value;
  }
  return found;
}

// `value`: of the parameter's shape, on the mesh's device.
void ParameterWatch::take_in(int parameter, const at::Tensor& value) {
  Unit& unit = model_.unit_of(parameter);
  const UnitParameter& spot = model_.spot_of(parameter);
  if (spot.numel == 0) return;
  const at::Tensor flat = value.contiguous().view({-1});
  unit.full.narrow(0, spot.offset, spot.numel).copy_(flat);
  for (const ShardSegment& segment : model_.segments_of_parameter(parameter)) {
    unit.set_values(segment.begin, flat.narrow(0, segment.parameter_begin, segment.numel()));
    if (!unit.scope.before.defined()) continue;
    // Not what the scope's end finds changed: the master has all of its bits.
    const auto lease = unit.lend_shard(StateStore::Use::Read);
    unit.scope.before.narrow(0, segment.begin, segment.numel())
        .copy_(lease[kParameterState].narrow(0, segment.begin, segment.numel()));
  }
}

void ParameterWatch::take_in_replaced(int unit) {
  std::exception_ptr refused;
  for (const int i : parameters_[unit]) {
    try {
      const at::Tensor value = replacement_of(i);
      make_views(i);
      if (value.defined()) take_in(i, value);
    } catch (...) {
      make_views(i);
      if (!refused) refused = std::current_exception();
    }
  }
  if (refused) std::rethrow_exception(refused);
}

void ParameterWatch::take_in_replaced_of(int unit, int root) {
  const std::vector<int>& parameters = parameters_[unit];
  const std::string& unit_name = model_.layout(unit).name;
  std::vector<at::Tensor> values(parameters.size());
  at::Tensor replaced = at::zeros({std::ssize(parameters) + 1}, at::kByte);
  std::exception_ptr refused;
  try {
    for (int p = 0; p < std::ssize(values) && model_.all.rank() == root; ++p) {
      values[p] = replacement_of(parameters[p]);
      replaced[p] = values[p].defined();
    }
  } catch (...) {
    refused = std::current_exception();
    replaced[replaced.numel() - 1] = 1;
  }
  replaced = replaced.to(model_.mesh.device());
  const WaitPlace place("replaced parameters");
  model_.all.broadcast(replaced, root, unit_name).wait();
  replaced = replaced.cpu();
  for (int p = 0; p < std::ssize(values); ++p) make_views(parameters[p]);
  if (refused) std::rethrow_exception(refused);
  require(!replaced[replaced.numel() - 1].item<bool>(), ErrorKind::Usage, unit_name,
          "rank " + std::to_string(root) + " replaced a parameter by what cannot be its value");
  for (int p = 0; p < std::ssize(values); ++p) {
    if (!replaced[p].item<bool>()) continue;
    const auto options = at::TensorOptions(at::kFloat).device(model_.mesh.device());
    at::Tensor value = model_.all.rank() == root ? values[p].to(at::kFloat).contiguous()
                                                 : at::empty(model_.spot_of(parameters[p]).shape, options);
    if (value.numel() > 0) {
      const WaitPlace at_values("values of replaced parameters");
      model_.all.broadcast(value.view({-1}).view(at::kByte), root, model_.spot_of(parameters[p]).name).wait();
    }
    take_in(parameters[p], value);
  }
}

// Of each parameter's part in this rank's shard.
std::vector<uint64_t> ParameterWatch::checks_of(int unit) const {
  const Unit& watched = model_.units[unit];
  std::vector<uint64_t> checks;
  if (watched.keeps_writes()) return checks;
  const at::Tensor mine = own_part(model_, watched);
  for (const ShardSegment& segment : model_.segments(unit))
    checks.push_back(check_of(mine.narrow(0, segment.begin, segment.numel())));
  return checks;
}

void ParameterWatch::begin_scope(int index, bool modifies) {
  Unit& unit = model_.units[index];
  if (!modifies) {
    if (unit.pins == 1) unit.scope.checks = checks_of(index);
  } else if (unit.scope.modifying++ == 0) {
    if (unit.shard_lies_in_full()) unit.scope.before = own_part(model_, unit).clone();
  }
}

void ParameterWatch::end_scope(int unit, bool modifies) {
  if (modifies)
    take_over(unit);
  else if (model_.units[unit].scope.modifying == 0)
    refuse_written(unit);
}

void ParameterWatch::take_over(int index) {
  Unit& unit = model_.units[index];
  std::exception_ptr refused;
  try {
    take_in_replaced(index);
  } catch (...) {
    refused = std::current_exception();
  }
  unit.adopt_changes(own_part(model_, unit));
  if (unit.scope.before.defined()) unit.scope.before.copy_(own_part(model_, unit));
  forget_writes(index);
  if (--unit.scope.modifying == 0) {
    unit.scope.before.reset();
    unit.scope.checks = unit.pins > 1 ? checks_of(index) : std::vector<uint64_t>();
  }
  if (refused) std::rethrow_exception(refused);
}

void ParameterWatch::refuse_written(int index) {
  std::vector<uint64_t>& checks = model_.units[index].scope.checks;
  const std::vector<uint64_t> before = std::exchange(checks, checks_of(index));
  const std::vector<ShardSegment> segments = model_.segments(index);
  std::string written;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == checks[i]) continue;
    adopt_written(index, segments[i].parameter);
    written += (written.empty() ? "" : ", ") + segments[i].name;
  }
  if (!written.empty()) forget_writes(index);
  require(written.empty(), ErrorKind::Usage, written, "written in a GatherScope to read",
          "open the scope with Access::Modify");
}

}  // namespace zero::detail

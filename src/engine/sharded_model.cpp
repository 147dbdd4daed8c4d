#include "engine/sharded_model.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "base/nearest.h"
#include "compute/zeros.h"
#include "optim/split_master.h"
#include "zero/error.h"
#include "zero/lazy.h"

namespace zero::detail {
namespace {

PlanOptions plan_options(const EngineOptions& options, const OptimizerSpec& optimizer, int ranks) {
  PlanOptions result;
  result.stage = options.stage;
  result.ranks = ranks;
  result.shard_group_ranks = options.shard_group_ranks;
  result.accumulation_steps = options.accumulation_steps;
  result.state.gradient_bytes = static_cast<int64_t>(c10::elementSize(options.accumulation_dtype));
  result.state.bf16_master_bytes = options.split_master && split_masters_work(optimizer) ? 2 : 4;
  result.state.optimizer_bytes = optimizer_state_bytes(optimizer).value_or(8);  // unknown: assume two moments
  if (options.communication_dtype) result.communication_dtype = dtype_of(*options.communication_dtype);
  // What is divided before it travels is no longer as autograd made it.
  if (!options.communication_dtype && options.gradient_predivide_factor != 1)
    result.communication_dtype = Dtype::f32;
  result.budget_bytes = options.budget_bytes;
  result.prefetch_bytes = options.prefetch_bytes;
  result.reduce_bucket_numel = options.reduce_bucket_numel;
  return result;
}

std::optional<Dtype> compute_dtype(const EngineOptions& options) {
  if (!options.dtype) return std::nullopt;
  return dtype_of(*options.dtype);
}

void check(const EngineOptions& options) {
  auto config = [](bool ok, std::string_view place, const std::string& problem) {
    require(ok, ErrorKind::Config, place, problem);
  };
  config(options.gradient_clipping >= 0 && std::isfinite(options.gradient_clipping), "gradient_clipping",
         "expected a finite number >= 0, got " + std::to_string(options.gradient_clipping));
  config(options.gradient_predivide_factor > 0 && std::isfinite(options.gradient_predivide_factor),
         "gradient_predivide_factor",
         "expected a finite number > 0, got " + std::to_string(options.gradient_predivide_factor));
  for (at::ScalarType type : {options.communication_dtype.value_or(at::kFloat), options.accumulation_dtype,
                              options.dtype.value_or(at::kFloat)})
    config(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "dtype",
           std::string("expected fp32, bf16 or fp16, got ") + c10::toString(type));
}

// Piece by piece through shared memory where there is some: a copy of a whole parameter would be the peak.
void take_from_rank0(const Group& all, const at::Tensor& values, const std::string& name) {
  const at::Tensor bytes = values.view({-1}).view(at::kByte);
  constexpr int64_t kPieceBytes = 4 << 20;
  if (bytes.numel() == 0) return;
  if (!all.shares_memory()) return all.broadcast(bytes, 0, name).wait();
  const at::Tensor piece = all.empty(std::min(kPieceBytes, bytes.numel()), at::kByte);
  for (int64_t begin = 0; begin < bytes.numel(); begin += kPieceBytes) {
    at::Tensor part = bytes.narrow(0, begin, std::min(kPieceBytes, bytes.numel() - begin));
    at::Tensor wire = all.rank() == 0 ? piece.narrow(0, 0, part.numel()) : part;
    if (all.rank() == 0) wire.copy_(part);
    all.broadcast(wire, 0, name).wait();  // on rank 0: until all have read the piece
  }
}

// Values that the engine writes itself: no graph, no interception.
struct OwnWork {
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
};

}  // namespace

ShardedModel::ShardedModel(ModelParameters model, const OptimizerSpec& optimizer_spec,
                           const EngineOptions& engine_options, Mesh job)
    : mesh(std::move(job)), options(engine_options), model_(std::move(model)) {
  check(options);
  validate(optimizer_spec);
  all = mesh.group("dp");
  const std::optional<Dtype> dtype = compute_dtype(options);
  LayoutOptions layout;
  layout.group_numel = options.group_numel;
  PlanOptions wanted = plan_options(options, optimizer_spec, all.size());
  // At stage 0 this decides whether there are shards at all.
  wanted.common_parameters = options.share_parameters && all.shares_memory();
  plan = make_plan(model_.spec, wanted, layout, dtype ? &*dtype : nullptr);
  for (const UnitLayout& unit : plan.units)
    require(!unit.trainable || unit.dtype != Dtype::f64, ErrorKind::Unsupported, unit.name,
            "trainable fp64 parameters would lose precision in the fp32 master copy",
            "set a compute dtype, or freeze them");
  Mesh::Blocks blocks = mesh.split("dp", plan.shard_ranks);
  shard_group = blocks.inner;
  replica_group = blocks.outer;
  if (shard_group.shares_memory() || (shard_group.size() == 1 && replica_group.shares_memory()))
    wanted.reduce_bucket_numel = std::min(wanted.reduce_bucket_numel, kSharedBucketNumel);
  wanted.common_parameters = options.share_parameters && shard_group.shares_memory();
  plan = make_plan(model_.spec, wanted, layout, dtype ? &*dtype : nullptr);

  for (size_t u = 0; u < plan.units.size(); ++u) {
    first_parameter_.push_back(static_cast<int>(names_.size()));
    if (plan.units[u].trainable) trainable.push_back(static_cast<int>(u));
    for (size_t p = 0; p < plan.units[u].parameters.size(); ++p) {
      const UnitParameter& parameter = plan.units[u].parameters[p];
      index_[parameter.name] = static_cast<int>(names_.size());
      for (const std::string& alias : parameter.aliases) index_[alias] = static_cast<int>(names_.size());
      names_.push_back(parameter.name);
      places_.push_back({static_cast<int>(u), static_cast<int>(p)});
    }
  }
  OwnWork own;
  allocate();
  fill();
  make_optimizer(optimizer_spec);
  residency = std::make_unique<Residency>(
      units, shard_group,
      Residency::Options{.budget_bytes = plan.budget_bytes,
                         .prefetch_bytes = options.prefetch_bytes,
                         .overlap = options.overlap,
                         .persistent = plan.placements.parameter != Placement::Shard,
                         .trace = this->mesh.trace()});
}

// Shards, and full slabs where parameters are replicated; zeros, so that padding is zero for good.
void ShardedModel::allocate() {
  units.resize(plan.units.size());
  const bool replicated = plan.placements.parameter == Placement::Replicate || shard_group.size() == 1;
  for (size_t u = 0; u < units.size(); ++u) {
    Unit& unit = units[u];
    unit.layout = plan.units[u];
    unit.tag = std::make_shared<UnitTag>(static_cast<int>(u), &plan.units[u]);
    const auto values = at::TensorOptions(scalar_type_of(unit.layout.dtype)).device(mesh.device());
    const bool common = plan.placements.parameter == Placement::Common && unit.layout.padded_numel > 0;
    if (common || replicated || unit.layout.padded_numel == 0) {
      if (common)
        unit.common = shard_group.together(unit.layout.padded_numel,
                                           c10::typeMetaToScalarType(values.dtype()), unit.layout.name);
      unit.full = common ? unit.common : zeros(unit.layout.padded_numel, values);
      unit.shard = unit.full.narrow(0, shard_group.rank() * unit.layout.shard_numel, unit.layout.shard_numel);
    } else {
      unit.shard = zeros(unit.layout.shard_numel, values);
    }
    if (unit.layout.trainable) {
      const bool split = unit.layout.dtype == Dtype::bf16 && plan.options.state.bf16_master_bytes == 2;
      unit.master = unit.layout.dtype == Dtype::f32
                        ? unit.shard
                        : zeros(unit.layout.shard_numel, values.dtype(split ? kRemainderType : at::kFloat));
    }
    unit.slab = make_unreadable_storage(unit.layout.slab_bytes(), mesh.device(), unit.tag,
                                        hidden_message(unit.layout));
  }
}

// Takes every parameter's initial value, one at a time, and lets go of it.
void ShardedModel::fill() {
  const InitialValues* elsewhere = options.initial_values.get();
  std::vector<at::Tensor> wanted;
  std::vector<ElementRange> parts;
  std::vector<size_t> which;  // of the names, then of the buffers
  for (size_t i = 0; i < names_.size(); ++i) {
    if (elsewhere && elsewhere->holds(names_[i])) continue;
    wanted.push_back(tensors_of(static_cast<int>(i)).front());
    parts.push_back(initial_part(static_cast<int>(i)));
    which.push_back(i);
  }
  for (size_t i = 0; i < model_.buffers.size(); ++i) {
    wanted.push_back(model_.buffers[i].second);
    parts.push_back({0, model_.buffers[i].second.numel()});
    which.push_back(names_.size() + i);
  }
  buffers.resize(model_.buffers.size());
  std::vector<char> drawn(units.size());
  replay(wanted, parts, [&](size_t index, const at::Tensor& found) {
    const size_t i = which[index];
    at::Tensor value = found.detach().contiguous().to(mesh.device());
    if (options.broadcast_initial_values && all.size() > 1) {
      // Straight into the found memory: it is the engine's now, and about to be let go.
      const std::string& name = i < names_.size() ? names_[i] : model_.buffers[i - names_.size()].first;
      take_from_rank0(all, value, name);
    }
    if (i >= names_.size()) {
      auto& [name, buffer] = buffers[i - names_.size()];
      name = model_.buffers[i - names_.size()].first;
      const auto dtype = options.buffer_dtype ? options.buffer_dtype : options.dtype;
      buffer = value.is_floating_point() && dtype ? value.to(*dtype) : value;
      if (buffer.is_alias_of(found)) buffer = buffer.clone();
      return;
    }
    drawn[static_cast<size_t>(places_[i].unit)] = 1;
    place_values(static_cast<int>(i), value);
    take_over(static_cast<int>(i));
  });
  if (!options.broadcast_initial_values) take_over_from_replicas(drawn);
  for (size_t i = 0; elsewhere && i < names_.size(); ++i) {
    if (!elsewhere->holds(names_[i])) continue;
    read_values(static_cast<int>(i));
    take_over(static_cast<int>(i));
  }
  options.initial_values = nullptr;  // its files need not stay open
  for (size_t i = 0; i < buffers.size(); ++i) {
    at::Tensor module_buffer = model_.buffers[i].second;
    module_buffer.set_data(buffers[i].second);
    buffers[i].second = module_buffer;
  }
  if (plan.placements.parameter == Placement::Common) shard_group.barrier("initial values");
  for (Unit& unit : units) {
    if (!unit.full.defined()) continue;
    unit.state = SlabState::Resident;  // built by hand: no all-gather made it so
    unit.expose();
  }
}

// Ranks that keep the same values for good must have the same bits, whatever processor computed them.
void ShardedModel::take_over_from_replicas(const std::vector<char>& drawn) {
  if (replica_group.size() == 1) return;
  for (size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = units[u];
    if (!drawn[u]) continue;
    const at::Tensor& values = unit.full.defined() && !unit.common.defined() ? unit.full : unit.shard;
    take_from_rank0(replica_group, values, unit.layout.name);
    if (unit.master.defined() && !unit.master.is_alias_of(values))
      take_from_rank0(replica_group, unit.master, unit.layout.name);
  }
}

// What this rank looks at of the module's own values of a parameter.
ElementRange ShardedModel::initial_part(int parameter) const {
  const Place place = places_[static_cast<size_t>(parameter)];
  const Unit& unit = units[static_cast<size_t>(place.unit)];
  const int64_t numel = unit.layout.parameters[static_cast<size_t>(place.parameter)].numel;
  const bool sent = options.broadcast_initial_values && all.size() > 1;
  if (sent && all.rank() != 0) return {};
  if (sent || (unit.full.defined() && !unit.common.defined())) return {0, numel};
  for (const ShardSegment& segment : segments(place.unit))
    if (segment.parameter == parameter)
      return {segment.parameter_begin, segment.parameter_begin + segment.numel()};
  return {};
}

// The module's tensors become views of the slab.
void ShardedModel::take_over(int parameter) {
  const Place place = places_[static_cast<size_t>(parameter)];
  const UnitParameter& spot = layout(place.unit).parameters[static_cast<size_t>(place.parameter)];
  // An eager parameter's own memory is freed here, before the next one is looked at.
  for (const at::Tensor& tensor : tensors_of(parameter))
    tensor.set_data(view_of(units[static_cast<size_t>(place.unit)], spot));
}

// Reads what this rank keeps of a parameter, a piece at a time and nothing twice. Pieces are some blocks of a
// checkpoint long, since of those at its ends a reader needs the whole.
void ShardedModel::read_values(int parameter) {
  constexpr int64_t kPieceNumel = 1 << 20;
  const Place place = places_[static_cast<size_t>(parameter)];
  Unit& unit = units[static_cast<size_t>(place.unit)];
  const UnitParameter& spot = unit.layout.parameters[static_cast<size_t>(place.parameter)];
  const bool whole = unit.full.defined() && !unit.common.defined();
  std::vector<ShardSegment> mine = segments(place.unit);
  std::erase_if(mine, [&](const ShardSegment& segment) { return segment.parameter != parameter; });
  const at::Tensor buffer = at::empty({std::min(kPieceNumel, spot.numel)}, at::kFloat);
  // Elements [begin, end) of the parameter.
  const auto read = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kPieceNumel) {
      const int64_t stop = std::min(end, at + kPieceNumel);
      const at::Tensor piece = buffer.narrow(0, 0, stop - at);
      options.initial_values->read(names_[static_cast<size_t>(parameter)], at, piece);
      if (whole) unit.full.narrow(0, spot.offset + at, stop - at).copy_(piece);
      for (const ShardSegment& segment : mine) {
        const int64_t first = std::max(at, segment.parameter_begin);
        const int64_t count = std::min(stop, segment.parameter_begin + segment.numel()) - first;
        if (count <= 0) continue;
        const int64_t target = segment.begin + first - segment.parameter_begin;
        unit.set_values(target, piece.narrow(0, first - at, count));
      }
    }
  };
  if (whole) return read(0, spot.numel);
  for (const ShardSegment& segment : mine)
    read(segment.parameter_begin, segment.parameter_begin + segment.numel());
}

void ShardedModel::place_values(int parameter, const at::Tensor& value) {
  const Place place = places_[static_cast<size_t>(parameter)];
  Unit& unit = units[static_cast<size_t>(place.unit)];
  const UnitParameter& spot = unit.layout.parameters[static_cast<size_t>(place.parameter)];
  if (spot.numel == 0) return;
  const at::Tensor flat = value.view({-1});
  if (unit.full.defined() && !unit.common.defined()) unit.full.narrow(0, spot.offset, spot.numel).copy_(flat);
  for (const ShardSegment& segment : segments(place.unit)) {
    if (segment.parameter != parameter) continue;
    unit.set_values(segment.begin, flat.narrow(0, segment.parameter_begin, segment.numel()));
  }
}

std::vector<ShardSegment> ShardedModel::segments(int unit) const {
  return segments_of(layout(unit), shard_group.rank(), first_parameter_[static_cast<size_t>(unit)]);
}

void ShardedModel::make_optimizer(const OptimizerSpec& spec) {
  gradients = std::make_unique<Gradients>(
      units, shard_group, replica_group, all,
      GradientOptions{.placement = plan.placements.gradient,
                      .accumulates = options.accumulation_steps > 1,
                      .accumulation_dtype = options.accumulation_dtype,
                      .communication_dtype = scalar_type_of(plan.communication_dtype),
                      .bucket_numel = plan.options.reduce_bucket_numel,
                      .predivide = options.gradient_predivide_factor,
                      .overlap = options.overlap});
  const std::vector<int> group_of = assign_groups(names_, options.groups);
  for (int u : trainable) {
    const Unit& unit = units[static_cast<size_t>(u)];
    OptimizerShard shard{.master = unit.master,
                         .gradient = gradients->shard_gradient(u),
                         .parameter = unit.shard,
                         .segments = segments(u)};
    for (ShardSegment& segment : shard.segments)
      segment.group = group_of[static_cast<size_t>(segment.parameter)];
    optimizer_shards.push_back(std::move(shard));
  }
  norm_shards_ = optimizer_shards;
  if (shard_group.size() == 1 && replica_group.size() > 1) share_out_norm();
  optimizer = make_shard_optimizer(spec, options.groups, optimizer_shards, parameter_count());
  used_everywhere.assign(names_.size(), 0);
}

// Replicas of the whole model each take the part of the gradient that would be their shard: less work, and
// the sum has the bits of the stages that shard.
void ShardedModel::share_out_norm() {
  const int rank = replica_group.rank();
  const std::optional<Dtype> dtype = compute_dtype(options);
  const std::vector<UnitLayout> cut =
      make_layout(model_.spec, {.shard_ranks = replica_group.size(), .group_numel = options.group_numel},
                  dtype ? &*dtype : nullptr);
  for (size_t i = 0; i < trainable.size(); ++i) {
    const auto unit = static_cast<size_t>(trainable[i]);
    norm_shards_[i].segments = segments_of(cut[unit], rank, first_parameter_[unit]);
    for (ShardSegment& segment : norm_shards_[i].segments) {
      segment.begin += rank * cut[unit].shard_numel;
      segment.end += rank * cut[unit].shard_numel;
    }
  }
}

ShardedModel::Place ShardedModel::place_of(const std::string& name) const {
  auto found = index_.find(name);
  if (found == index_.end()) {
    const std::string near = nearest_word(name, names_);
    fail(ErrorKind::Usage, name, "the model has no such parameter",
         near.empty() ? "" : "did you mean '" + near + "'?");
  }
  return places_[static_cast<size_t>(found->second)];
}

double ShardedModel::gradient_scale() const {
  return gradients->raw_scale() / (static_cast<double>(all.size()) * options.accumulation_steps);
}

StepResult ShardedModel::step(double lr, std::optional<Betas> betas) {
  residency->require_no_pins();
  OwnWork own;
  const std::vector<char> everything(names_.size(), 1);
  const double scale = gradient_scale();
  const uint32_t order =
      residency->take_order_hash() & 0xFFFFF;  // so small that its square times the ranks is exact

  TraceScope norm(mesh.trace(), Trace::Row::Optimizer, "gradient norm");
  // One small all-reduce carries all that ranks must agree on before a step.
  at::Tensor agreed = at::zeros({3 + parameter_count()}, at::kDouble);
  double* values = agreed.data_ptr<double>();
  const bool adds = replica_group.rank() == 0 || shard_group.size() == 1;
  values[0] = adds ? squared_norm(norm_shards_, scale, everything) : 0;
  values[1] = order;
  values[2] = static_cast<double>(order) * order;
  for (size_t i = 0; i < names_.size(); ++i) values[3 + i] = gradients->used()[i];
  at::Tensor on_device = agreed.to(mesh.device());
  all.all_reduce(on_device, Group::Reduce::Sum, "gradient norm").wait();
  agreed = on_device.cpu();
  values = agreed.data_ptr<double>();
  require(values[2] * all.size() == values[1] * values[1], ErrorKind::Comm, "step",
          "ranks gathered units in different orders in this step",
          "make all ranks run the same submodules, or gather those that differ with a GatherScope");

  norm.done();
  StepResult result{
      .stepped = true, .skipped = false, .lr = lr, .clip = clip_result(values[0], options.gradient_clipping)};
  for (size_t i = 0; i < names_.size(); ++i) used_everywhere[i] = values[3 + i] > 0;
  if (std::isfinite(values[0])) {
    const TraceScope update(mesh.trace(), Trace::Row::Optimizer, "update");
    optimizer->step({.gradient_scale = scale * result.clip.coefficient,
                     .lr = lr,
                     .used = used_everywhere,
                     .betas = betas});
    residency->values_changed();
  } else {
    result.skipped = true;
  }
  gradients->clear();
  return result;
}

at::Tensor ShardedModel::gather(Place place, const at::Tensor& shard) const {
  OwnWork own;
  const UnitLayout& unit = layout(place.unit);
  const UnitParameter& parameter = unit.parameters[static_cast<size_t>(place.parameter)];
  at::Tensor part = shard.to(at::kFloat);
  at::Tensor full = at::empty({unit.padded_numel}, part.options());
  if (unit.padded_numel > 0) shard_group.all_gather(full, part, unit.name).wait();
  return full.narrow(0, parameter.offset, parameter.numel).view(parameter.shape).cpu().clone();
}

}  // namespace zero::detail

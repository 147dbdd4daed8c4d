#include "sharding/sharded_model.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/nearest.h"
#include "compute/zeros.h"
#include "mesh/agree.h"
#include "mesh/group_parts.h"
#include "optim/split_master.h"
#include "plan/layout.h"
#include "sharding/initialise.h"
#include "zero/error.h"
#include "zero/lazy.h"

namespace zero::detail {
namespace {

OptimizerBytes bytes_of(const OptimizerSpec& optimizer) {
  // Of a torch optimizer whose states are not known: two moments.
  return {.states = optimizer_state_bytes(optimizer).value_or(8),
          .splits_master = split_masters_work(optimizer)};
}

// Fills in what the specification of a parameter says of axes beside "dp".
void describe_parts(ModuleSpec& module, const std::vector<std::string>& axes,
                    const std::map<std::string, ParameterPart>& parts, std::set<std::string>& named) {
  for (ParameterSpec& parameter : module.parameters) {
    const auto found = parts.find(parameter.name);
    if (found != parts.end()) {
      parameter.part = found->second;
      named.insert(parameter.name);
    } else {
      parameter.part = {parameter.shape, Box::whole(parameter.shape), axes};
    }
  }
  for (ModuleSpec& child : module.children) describe_parts(child, axes, parts, named);
}

void describe_parts(ModuleSpec& spec, const Mesh& mesh, const std::map<std::string, ParameterPart>& parts) {
  std::vector<std::string> axes;
  for (const Axis& axis : mesh.axes())
    if (axis.name != "dp") axes.push_back(axis.name);
  std::vector<std::string> others = axes;
  std::erase_if(others, [&](const std::string& axis) { return mesh.group(axis).size() == 1; });
  std::set<std::string> named;
  describe_parts(spec, others, parts, named);
  for (const auto& [name, part] : parts) {
    require(named.contains(name), ErrorKind::Config, "parts", "the model has no parameter " + name);
    require(!part.global_shape.empty() || part.box == Box{}, ErrorKind::Config, name,
            "its part has a box, but no global shape");
    for (const std::string& axis : part.replicated_over)
      require(std::find(axes.begin(), axes.end(), axis) != axes.end(), ErrorKind::Config, name,
              "it is said to be replicated over axis \"" + axis + "\", which the mesh lacks or shards over");
  }
}

}  // namespace

ShardedModel::ShardedModel(ModelParameters model, const OptimizerSpec& optimizer_spec,
                           const EngineOptions& engine_options, Mesh job, bool seals)
    : mesh(std::move(job)), options(engine_options), model_(std::move(model)) {
  validate(optimizer_spec);
  all = mesh.group("dp");
  everyone = all.size() == mesh.size() ? all : mesh.world();
  describe_parts(model_.spec, mesh, options.parts);
  plan = make_plan(model_.spec, options, RankPlaces::of(all.memories(), mesh.device().is_cpu()),
                   bytes_of(optimizer_spec));
  for (const UnitLayout& unit : plan.units)
    require(!unit.trainable || unit.dtype != Dtype::f64, ErrorKind::Unsupported, unit.name,
            "trainable fp64 parameters would lose precision in the fp32 master copy",
            "set a compute dtype, or freeze them");
  Mesh::Blocks blocks = mesh.split("dp", plan.shard_ranks);
  shard_group = blocks.inner;
  replica_group = blocks.outer;

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
  number_what_all_agree_on();
  OwnWork own;
  allocate();
  initialise(*this, model_.buffers);
  make_optimizer(optimizer_spec);
  residency = std::make_unique<Residency>(units, shard_group, plan, this->mesh.trace(), seals);
}

// Along other axes than "dp" ranks may hold other parameters, or others of their elements.
void ShardedModel::number_what_all_agree_on() {
  for (const Axis& axis : mesh.axes()) {
    if (axis.name == "dp") continue;
    dp_group_ = dp_group_ * axis.size + mesh.group(axis.name).rank();
    dp_groups_ *= axis.size;
  }
  std::string mine;
  for (const Place place : places_) {
    const UnitParameter& parameter = layout_of(place);
    bool first = true;
    for (const std::string& axis : parameter.part.replicated_over)
      first = first && mesh.group(axis).rank() == 0;
    is_copy_.push_back(first ? 0 : 1);
    mine += parameter.name + "\n";
  }
  std::map<std::string, int64_t, std::less<>> numbers;
  const auto add = [&](const std::string& text) {
    std::istringstream lines(text);
    for (std::string name; std::getline(lines, name);)
      numbers.emplace(std::move(name), static_cast<int64_t>(numbers.size()));
  };
  if (dp_groups_ == 1)
    add(mine);
  else
    for (const std::string& text : gather_text(mesh, everyone, mine, "parameters")) add(text);
  for (const std::string& name : names_) common_number_.push_back(numbers.at(name));
  common_parameters_ = static_cast<int64_t>(numbers.size());
  if (dp_groups_ > 1) require_same_replicas();
}

// A parameter that is said to be the same along an axis must be the same box there.
void ShardedModel::require_same_replicas() const {
  for (const Axis& axis : mesh.axes()) {
    if (axis.name == "dp" || axis.size == 1) continue;
    std::string text;
    for (const Place place : places_) {
      const UnitParameter& parameter = layout_of(place);
      const auto& over = parameter.part.replicated_over;
      if (std::find(over.begin(), over.end(), axis.name) == over.end()) continue;
      text += parameter.name + "\t" + to_string(parameter.part.box) + "\n";
    }
    const Group along = mesh.group(axis.name);
    const auto texts = gather_text(mesh, along, text, "replicated parameters");
    for (int rank = 0; rank < along.size(); ++rank)
      require(texts[static_cast<size_t>(rank)] == texts[0], ErrorKind::Config, "axis " + axis.name,
              "rank " + std::to_string(along.members()[static_cast<size_t>(rank)]) +
                  " holds other replicated parameters than rank " + std::to_string(along.members()[0]),
              "say in EngineOptions::parts what each rank's module holds");
  }
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
        unit.common = common_tensor(shard_group, unit.layout.padded_numel,
                                    c10::typeMetaToScalarType(values.dtype()), unit.layout.name);
      unit.full = common ? unit.common : zeros(unit.layout.padded_numel, values);
      unit.shard = unit.full.narrow(0, shard_group.rank() * unit.layout.shard_numel, unit.layout.shard_numel);
    } else {
      unit.shard = zeros(unit.layout.shard_numel, values);
    }
    unit.index = static_cast<int>(u);
    unit.states = &states;
    states.adopt(unit.index, kParameterState, unit.shard);
    if (unit.layout.trainable) add_master(unit);
    unit.slab = make_unreadable_storage(unit.layout.slab_bytes(), mesh.device(), unit.tag,
                                        hidden_message(unit.layout));
  }
}

void ShardedModel::add_master(Unit& unit) {
  if (unit.layout.dtype == Dtype::f32) {
    unit.master = MasterForm::Shard;
    return states.adopt(unit.index, kMasterState, unit.shard);
  }
  const bool split = unit.layout.dtype == Dtype::bf16 && plan.split_master();
  unit.master = split ? MasterForm::Remainder : MasterForm::Whole;
  states.create(unit.index, kMasterState, unit.layout.shard_numel,
                unit.shard.options().dtype(split ? kRemainderType : at::kFloat), unit.layout.tiers.master);
}

std::vector<ShardSegment> ShardedModel::segments(int unit) const {
  return segments_of(layout(unit), shard_group.rank(), first_parameter_[static_cast<size_t>(unit)]);
}

std::vector<ShardSegment> ShardedModel::segments_of_parameter(int parameter) const {
  std::vector<ShardSegment> found = segments(place_of(parameter).unit);
  std::erase_if(found, [&](const ShardSegment& segment) { return segment.parameter != parameter; });
  return found;
}

void ShardedModel::make_optimizer(const OptimizerSpec& spec) {
  gradients = std::make_unique<Gradients>(units, shard_group, replica_group, all, plan);
  const std::vector<int> group_of = assign_groups(names_, options.groups);
  for (int u : trainable) {
    states.adopt(u, kGradientState, gradients->shard_gradient(u));
    OptimizerShard shard{.unit = u, .tier = layout(u).tiers.optimizer, .segments = segments(u)};
    for (ShardSegment& segment : shard.segments)
      segment.group = group_of[static_cast<size_t>(segment.parameter)];
    optimizer_shards.push_back(std::move(shard));
  }
  if (replica_group.size() > 1) share_out_sums();
  if (dp_groups_ > 1) leave_copies_out_of_sums();
  optimizer = make_shard_optimizer(spec, options.groups, states, optimizer_shards, parameter_count());
  used_everywhere.assign(names_.size(), 0);
}

// What several ranks hold counts once in sums over all ranks. Replicas of the whole model each count what
// would be their shard: less work, and the sums have the bits of the stages that shard. Of replicas of a
// shard the first counts.
void ShardedModel::share_out_sums() {
  const int rank = replica_group.rank();
  const bool whole = shard_group.size() == 1;
  const std::optional<Dtype> dtype = options.dtype;
  std::vector<UnitLayout> cut;
  if (whole)
    cut = make_layout(model_.spec, {.shard_ranks = replica_group.size(), .group_numel = options.group_numel},
                      dtype ? &*dtype : nullptr);
  for (size_t i = 0; i < trainable.size(); ++i) {
    const int64_t numel = whole ? cut[trainable[i]].shard_numel : 0, begin = rank * numel,
                  end = begin + numel;
    for (ShardSegment& segment : optimizer_shards[i].segments) {
      if (whole) {
        segment.counted_begin = std::clamp(begin, segment.begin, segment.end);
        segment.counted_end = std::clamp(end, segment.begin, segment.end);
      } else if (rank > 0) {
        segment.counted_end = segment.counted_begin;
      }
    }
  }
}

// Of what ranks along other axes than "dp" hold alike, the first one counts.
void ShardedModel::leave_copies_out_of_sums() {
  counted_elsewhere_ = optimizer_shards;
  for (size_t i = 0; i < optimizer_shards.size(); ++i)
    for (size_t j = 0; j < optimizer_shards[i].segments.size(); ++j) {
      ShardSegment& here = optimizer_shards[i].segments[j];
      ShardSegment& elsewhere = counted_elsewhere_[i].segments[j];
      ShardSegment& none = is_copy_[static_cast<size_t>(here.parameter)] ? here : elsewhere;
      none.counted_end = none.counted_begin;
    }
}

// Several sums of each parameter; those of the parameters of all axes are added at once.
void ShardedModel::sum_over_ranks(std::span<double> sums) const {
  if (everyone.size() == 1 || sums.empty()) return;
  const size_t each = sums.size() / names_.size();
  at::Tensor on_device = at::zeros({common_parameters_ * static_cast<int64_t>(each)}, at::kDouble);
  for (size_t i = 0; i < names_.size(); ++i)
    std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(i * each), each,
                on_device.mutable_data_ptr<double>() + static_cast<size_t>(common_number_[i]) * each);
  on_device = on_device.to(mesh.device());
  everyone.all_reduce(on_device, Group::Reduce::Sum, "sums of parameters").wait();
  const at::Tensor found = on_device.cpu();
  for (size_t i = 0; i < names_.size(); ++i)
    std::copy_n(found.const_data_ptr<double>() + static_cast<size_t>(common_number_[i]) * each, each,
                sums.begin() + static_cast<std::ptrdiff_t>(i * each));
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
  return gradients->raw_scale() / (static_cast<double>(all.size()) * plan.accumulation_steps);
}

// What this rank adds to the square of the norm. Not finite where any of its gradients is not, counted or
// not.
double ShardedModel::own_squares(double scale) {
  const std::vector<char> everything(names_.size(), 1);
  const double counted = squared_norm(states, optimizer_shards, scale, everything);
  if (counted_elsewhere_.empty()) return counted;
  const double elsewhere = squared_norm(states, counted_elsewhere_, scale, everything);
  return std::isfinite(elsewhere) ? counted : counted + elsewhere;
}

StepResult ShardedModel::step(double lr, std::optional<Betas> betas) {
  residency->require_no_pins();
  OwnWork own;
  const double scale = gradient_scale();
  const uint32_t order =
      residency->take_order_hash() & 0xFFFFF;  // so small that its square times the ranks is exact

  TraceScope norm(mesh.trace(), Trace::Row::Optimizer, "gradient norm");
  // One small all-reduce carries all that ranks must agree on before a step: the norm, for each group along
  // "dp" the sums of its orders and their squares, and which parameters had a gradient.
  const int64_t orders = 1, used = orders + int64_t{2} * dp_groups_;
  at::Tensor agreed = at::zeros({used + common_parameters_}, at::kDouble);
  double* values = agreed.data_ptr<double>();
  values[0] = own_squares(scale);
  values[orders + 2 * dp_group_] = order;
  values[orders + 2 * dp_group_ + 1] = static_cast<double>(order) * order;
  for (size_t i = 0; i < names_.size(); ++i) values[used + common_number_[i]] = gradients->used()[i];
  at::Tensor on_device = agreed.to(mesh.device());
  everyone.all_reduce(on_device, Group::Reduce::Sum, "gradient norm").wait();
  agreed = on_device.cpu();
  values = agreed.data_ptr<double>();
  for (int group = 0; group < dp_groups_; ++group) {
    const double sum = values[orders + 2 * group], squares = values[orders + 2 * group + 1];
    require(squares * all.size() == sum * sum, ErrorKind::Comm, "step",
            "ranks gathered units in different orders in this step",
            "make all ranks run the same submodules, or gather those that differ with a GatherScope");
  }

  norm.done();
  StepResult result{
      .stepped = true, .skipped = false, .lr = lr, .clip = clip_result(values[0], options.gradient_clipping)};
  for (size_t i = 0; i < names_.size(); ++i) used_everywhere[i] = values[used + common_number_[i]] > 0;
  if (std::isfinite(values[0])) {
    const TraceScope update(mesh.trace(), Trace::Row::Optimizer, "update");
    optimizer->step({.gradient_scale = scale * result.clip.coefficient,
                     .lr = lr,
                     .used = used_everywhere,
                     .betas = betas,
                     .sum_over_ranks = [this](std::span<double> sums) { sum_over_ranks(sums); }});
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

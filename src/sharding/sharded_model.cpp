#include "sharding/sharded_model.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <utility>

#include "base/nearest.h"
#include "compute/memory_purpose.h"
#include "compute/wait_place.h"
#include "compute/zeros.h"
#include "mesh/agree.h"
#include "mesh/group_parts.h"
#include "optim/host_tier.h"
#include "optim/split_master.h"
#include "plan/layout.h"
#include "plan/state_bytes.h"
#include "sharding/counted_elements.h"
#include "sharding/describe_parts.h"
#include "sharding/initialise.h"
#include "sharding/overflow.h"
#include "tiers/disk_states.h"
#include "zero/error.h"
#include "zero/torch_dtype.h"

namespace zero::detail {
namespace {

OptimizerBytes bytes_of(const OptimizerSpec& optimizer) {
  if (const auto rule = rule_of(optimizer)) return bytes_of_rule(*rule);
  // Of a torch optimizer whose states are not known: two moments.
  return {.states = optimizer_state_bytes(optimizer).value_or(8),
          .by_element = false,
          .whole_units = true,
          .splits_master = split_masters_work(optimizer)};
}

// Parameters that stay fp32 in a model of a narrower type.
bool computes_wide(const UnitLayout& layout, const EngineOptions& options) {
  return !options.fp32_parameters.empty() && layout.dtype == Dtype::f32 && options.dtype &&
         *options.dtype != Dtype::f32;
}

}  // namespace

ShardedModel::ShardedModel(ModelParameters model, const OptimizerSpec& optimizer_spec,
                           const EngineOptions& engine_options, Mesh job, bool seals)
    : mesh(std::move(job)), options(engine_options), rule(rule_of(optimizer_spec)), model_(std::move(model)) {
  validate(optimizer_spec);
  // In a forked process the first call makes LibTorch's thread pool anew. Autograd's threads, one a device,
  // would all make it at once.
  if (!mesh.device().is_cpu()) at::set_num_threads(at::get_num_threads());
  all = mesh.group("dp");
  describe_parts(model_.spec, mesh, options.parts);
  RankPlaces places = RankPlaces::of(all.memories(), mesh.device().is_cpu());
  places.communication = mesh.communication();
  plan = make_plan(model_.spec, options, places, bytes_of(optimizer_spec));
  for (const UnitLayout& unit : plan.units)
    require(!unit.trainable || unit.dtype != Dtype::f64, ErrorKind::Unsupported, unit.name,
            "trainable fp64 parameters would lose precision in the fp32 master copy",
            "set a compute dtype, or freeze them");
  open_tiers(optimizer_spec);
  Mesh::Blocks blocks = mesh.split("dp", plan.shard_ranks);
  shard_group = blocks.inner;
  replica_group = blocks.outer;
  common_group = mesh.split("dp", plan.common_ranks).inner;

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
  axes_.emplace(mesh, plan);
  OwnWork own;
  allocate();
  initialise(*this, model_.buffers);
  make_optimizer(optimizer_spec);
  residency = std::make_unique<Residency>(units, shard_group, plan, this->mesh.trace(), seals);
}

void ShardedModel::open_tiers(const OptimizerSpec& spec) {
  open_disk(spec);
  if (mesh.device().is_cpu() || plan.rank.offloaded_bytes == 0) return;
  require(rule_of(spec).has_value(), ErrorKind::Unsupported, "offload",
          "the states of a torch optimizer stay with the parameters on the device",
          "use one of zero's own optimizers");
  states.keep_on_host(std::make_unique<HostTier>(
      mesh.device(), plan.rank.tier_bytes[static_cast<size_t>(Tier::Host)], plan.offload.pin_memory,
      plan.offload.piece_numel, plan.offload.buffer_count));
}

// Before anything is allocated: a directory that will not do is an error of all ranks.
void ShardedModel::open_disk(const OptimizerSpec& spec) {
  if (plan.rank.file_bytes == 0) return;
  require(optimizer_state_bytes(spec).has_value(), ErrorKind::Unsupported, "offload",
          "this torch optimizer keeps states that nobody else knows: they cannot be on disk",
          "use torch::optim's Adam, AdamW, SGD, RMSprop or Adagrad, or zero's own optimizers");
  const bool moves_more = std::any_of(plan.units.begin(), plan.units.end(), [](const UnitLayout& unit) {
    return unit.tiers.parameter == Tier::Disk || unit.tiers.gradient == Tier::Disk;
  });
  require(!moves_more || rule_of(spec).has_value(), ErrorKind::Unsupported, "offload",
          "beside a torch optimizer parameters and gradients cannot be on disk",
          "leave them in memory, or use one of zero's own optimizers");
  together(mesh, "offload", [&] {
    const OffloadOptions& how = plan.offload;
    std::function<std::unique_ptr<tiers::BlockDevice>(int)> open_device;
    if (how.devices) open_device = [devices = how.devices](int file) { return devices->open(file); };
    std::function<std::shared_ptr<std::byte>(int64_t)> memory;
    if (!mesh.device().is_cpu() && how.pin_memory)
      memory = [](int64_t bytes) { return pinned_bytes(bytes, tiers::kAlignment); };
    auto file = std::make_unique<tiers::DiskFile>(tiers::DiskFileOptions{.directory = how.path,
                                                                         .bytes = plan.rank.file_bytes,
                                                                         .block_bytes = how.block_bytes,
                                                                         .queue_depth = how.queue_depth,
                                                                         .threads = how.threads,
                                                                         .open_device = open_device});
    std::vector<char> two_places;
    for (const UnitLayout& unit : plan.units)
      two_places.push_back(plan.steps_in_backward(unit) && !plan.updates_in_place());
    states.keep_on_disk(std::make_unique<tiers::DiskStates>(
                            std::move(file), tiers::DiskStatesOptions{.piece_numel = how.piece_numel,
                                                                      .buffers = how.buffer_count,
                                                                      .read_ahead = how.read_ahead,
                                                                      .write_behind = how.write_behind,
                                                                      .whole_memory = memory}),
                        std::move(two_places));
  });
}

// Shards, and full slabs where parameters are replicated; zeros, so that padding is zero for good.
void ShardedModel::allocate() {
  units.resize(plan.units.size());
  const bool replicates = plan.placements.parameter == Placement::Replicate || shard_group.size() == 1;
  for (size_t u = 0; u < units.size(); ++u) {
    Unit& unit = units[u];
    unit.layout = plan.units[u];
    unit.index = static_cast<int>(u);
    unit.tag = std::make_shared<UnitTag>(unit.index, &plan.units[u]);
    if (computes_wide(unit.layout, options)) unit.tag->narrow = scalar_type_of(*options.dtype);
    unit.states = &states;
    unit.slab = make_unreadable_storage(unit.layout.slab_bytes(), mesh.device(), unit.tag,
                                        hidden_message(unit.layout));
    const int64_t padded_numel = unit.layout.padded_numel, shard_numel = unit.layout.shard_numel;
    const bool common = plan.placements.parameter == Placement::Common && padded_numel > 0;
    unit.shard_is_slice = common || (replicates && !unit.is_away()) || padded_numel == 0;
    if (common)
      unit.common =
          common_tensor(common_group, padded_numel, scalar_type_of(unit.layout.dtype), unit.layout.name);
    if (unit.shard_is_slice) {
      const MemoryPurposeScope purpose(MemoryPurpose::Parameters);
      unit.full = common ? unit.common : zeros(padded_numel, unit.options());
      states.adopt(unit.index, kParameterState,
                   unit.full.narrow(0, shard_group.rank() * shard_numel, shard_numel));
    } else {
      states.create(unit.index, kParameterState, shard_numel, unit.options(), unit.layout.tiers.parameter);
    }
    if (unit.layout.trainable) add_master(unit);
  }
}

void ShardedModel::add_master(Unit& unit) {
  const bool rounds = unit.layout.dtype == Dtype::bf16 && options.stochastic_rounding;
  if (unit.layout.dtype == Dtype::f32 || rounds) {
    unit.master = MasterForm::Shard;
    return states.create_view(unit.index, kMasterState, kParameterState, 0, unit.layout.shard_numel);
  }
  const bool split = unit.layout.dtype == Dtype::bf16 && plan.split_master();
  unit.master = split ? MasterForm::Remainder : MasterForm::Whole;
  states.create(unit.index, kMasterState, unit.layout.shard_numel,
                unit.options().dtype(split ? kRemainderType : at::kFloat), unit.layout.tiers.master);
}

std::vector<ShardSegment> ShardedModel::segments(int unit) const {
  return segments_of(layout(unit), shard_group.rank(), first_parameter_[unit]);
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
    OptimizerShard shard{.unit = u, .tier = layout(u).tiers.optimizer, .segments = segments(u)};
    for (ShardSegment& segment : shard.segments) segment.group = group_of[segment.parameter];
    if (std::holds_alternative<Muon>(spec))
      find_matrices(layout(u), first_parameter_[u], group_of, options.groups, shard);
    if (std::holds_alternative<Adafactor>(spec)) find_factored(layout(u), first_parameter_[u], shard);
    optimizer_shards.push_back(std::move(shard));
  }
  if (replica_group.size() > 1) share_out_sums();
  for (OptimizerShard& shard : optimizer_shards)
    for (ShardSegment& segment : shard.segments) {
      segment.summed_begin = segment.counted_begin;
      segment.summed_end = segment.counted_end;
    }
  if (std::holds_alternative<Adafactor>(spec) && axes_->spans_other_axes()) find_cuts();
  if (axes_->spans_other_axes()) counted_elsewhere_ = leave_out_copies(optimizer_shards, *axes_);
  optimizer = make_shard_optimizer(spec, options.groups, states, optimizer_shards, parameter_count(),
                                   options.rounding_seed);
  take_squares_of_leaving();
  used_everywhere.assign(names_.size(), 0);
  AheadUpdates* const updates = optimizer->ahead();
  if (!plan.step_in_backward || updates == nullptr) return;
  ahead_ = std::make_unique<StepAhead>(units, states, *updates, *gradients, parameter_count(),
                                       plan.updates_in_place());
  ahead_->tell_of_use([this](int unit, const at::Tensor& sum) { see_used_up(unit, sum); });
}

// The norm needs no more of a gradient than its squares.
void ShardedModel::see_used_up(int unit, const at::Tensor& sum) {
  const auto add = [&](const std::vector<OptimizerShard>& shards, GradientSquares& squares) {
    for (const OptimizerShard& shard : shards)
      if (shard.unit == unit) squares.add(shard, sum);
  };
  add(optimizer_shards, squares_);
  add(counted_elsewhere_, squares_elsewhere_);
}

int ShardedModel::overflow_of_used_up(int unit) const {
  const auto* const squares = squares_.of(unit);
  if (squares == nullptr) return -1;
  for (const OptimizerShard& shard : optimizer_shards) {
    if (shard.unit != unit) continue;
    size_t number = 0;
    for (const ShardSegment& segment : shard.segments) {
      if (segment.counted_begin == segment.counted_end) continue;
      if (!(*squares)[number++].isfinite().all().item<bool>()) return segment.parameter;
    }
  }
  return -1;
}

// When a sum leaves the device its squares stay there: the norm needs no more of it.
void ShardedModel::take_squares_of_leaving() {
  if (!optimizer->has_squares_on_device()) return;
  gradients->tell_of_leaving([this](int unit, const at::Tensor& sum) {
    const auto add = [&](const std::vector<OptimizerShard>& shards, GradientSquares& squares) {
      for (const OptimizerShard& shard : shards)
        if (shard.unit == unit) squares.add(shard, sum);
    };
    add(optimizer_shards, squares_);
    add(counted_elsewhere_, squares_elsewhere_);
  });
}

// Of ranks along an axis that have the same part the first counts it.
void ShardedModel::find_cuts() {
  has_later_part_.assign(names_.size(), 0);
  std::vector<char> counts(names_.size(), 1);
  for (const AxesAgreement::Cut& cut : axes_->cuts(plan)) {
    const Group along = mesh.group(cut.axis);
    for (const int parameter : cut.parameters) has_later_part_[parameter] = along.rank() > 0 ? 1 : 0;
    for (const int parameter : cut.counted_elsewhere) counts[parameter] = 0;
    cut_parameters_.push_back({.parameters = cut.parameters, .along = reductions_over(along)});
  }
  for (OptimizerShard& shard : optimizer_shards)
    for (ShardSegment& segment : shard.segments)
      if (counts[segment.parameter] == 0) segment.summed_end = segment.summed_begin;
}

// Replicas of the whole model each count what would be their shard: less work, and the sums have the bits of
// the stages that shard. Of replicas of a shard the first counts.
void ShardedModel::share_out_sums() {
  std::vector<int64_t> cut_numel;
  if (shard_group.size() == 1) {
    const std::optional<Dtype> dtype = options.dtype;
    const std::vector<UnitLayout> cut =
        make_layout(model_.spec,
                    {.shard_ranks = replica_group.size(),
                     .alignment_numel = std::max(LayoutOptions{}.alignment_numel, plan.state.block_numel),
                     .group_numel = options.group_numel},
                    dtype ? &*dtype : nullptr);
    for (const int unit : trainable) cut_numel.push_back(cut[unit].shard_numel);
  }
  share_out_among_replicas(optimizer_shards, replica_group, cut_numel);
}

ShardedModel::Place ShardedModel::place_of(const std::string& name) const {
  auto found = index_.find(name);
  if (found == index_.end()) {
    const std::string near = nearest_word(name, names_);
    fail(ErrorKind::Usage, name, "the model has no such parameter",
         near.empty() ? "" : "did you mean '" + near + "'?");
  }
  return places_[found->second];
}

double ShardedModel::gradient_scale() const { return gradients->raw_scale() / (divisor() * loss_scale); }

double ShardedModel::divisor() const {
  if (total_weight_ > 0) return total_weight_;
  return static_cast<double>(all.size()) * plan.accumulation_steps;
}

void ShardedModel::set_weight(double own) {
  const at::Tensor sum = at::full({1}, own, at::TensorOptions(mesh.device()).dtype(at::kDouble));
  const WaitPlace place("weights of losses");
  all.all_reduce(sum, Group::Reduce::Sum, "weights of losses").wait();
  total_weight_ = sum.item<double>();
  require(total_weight_ > 0, ErrorKind::Usage, "backward_sum",
          "the losses of this step have no weight on any rank",
          "end training where all ranks are out of data");
}

// This rank's shards beside those of its group.
ShardExchange ShardedModel::exchange() const {
  const WaitPlace place("matrices");
  return {.rank = shard_group.rank(),
          .ranks = shard_group.size(),
          .all_gather =
              [this](const at::Tensor& shard) {
                const at::Tensor slab = at::empty({shard.numel() * shard_group.size()}, shard.options());
                shard_group.all_gather(slab, shard, "matrices").wait();
                return slab;
              },
          .reduce_scatter =
              [this](const at::Tensor& slab) {
                at::Tensor shard = at::empty({slab.numel() / shard_group.size()}, slab.options());
                shard_group.reduce_scatter(shard, slab, /*accumulate=*/false, "matrices").wait();
                return shard;
              }};
}

AxisReductions ShardedModel::reductions_over(const Group& group) const {
  const auto with = [&](Group::Reduce how) {
    return [this, group, how](std::span<double> values) {
      const WaitPlace place("sums of rows and columns");
      const at::Tensor own = at::from_blob(values.data(), {std::ssize(values)}, at::kDouble);
      const at::Tensor there = own.to(mesh.device(), /*non_blocking=*/false, /*copy=*/true);
      group.all_reduce(there, how, "sums of rows and columns").wait();
      own.copy_(there);
    };
  };
  return {.add_up = with(Group::Reduce::Sum), .largest = with(Group::Reduce::Max)};
}

// What this rank adds to the square of the norm, fp64 [1] on the mesh's device. Not finite where any of its
// gradients is not, counted or not.
at::Tensor ShardedModel::own_squares(double scale) {
  const std::vector<char> everything(names_.size(), 1);
  const auto of = [&](std::span<const OptimizerShard> shards, const GradientSquares& left) {
    if (optimizer->has_squares_on_device())
      return squared_norm_on_device(states, shards, scale, mesh.device(), &left);
    return at::full({1}, squared_norm(states, shards, scale, everything, &left),
                    at::TensorOptions(mesh.device()).dtype(at::kDouble));
  };
  const at::Tensor counted = of(optimizer_shards, squares_);
  if (counted_elsewhere_.empty()) return counted;
  const at::Tensor elsewhere = of(counted_elsewhere_, squares_elsewhere_);
  return at::where(elsewhere.isfinite(), counted, counted + elsewhere);
}

at::Tensor ShardedModel::add_up_step() {
  const TraceScope span(mesh.trace(), Trace::Row::Optimizer, "gradient norm");
  std::vector<int> order = residency->take_order();
  at::Tensor sums = axes_->add_up(own_squares(gradient_scale()), order, gradients->used());
  under_way_ = UnderWay{.outcome = std::make_shared<StepOutcome>(sums, options.gradient_clipping),
                        .gathered_units = std::move(order),
                        .is_counted = !optimizer->decides_on_device()};
  return sums;
}

void ShardedModel::settle() {
  const std::optional<UnderWay> step = std::exchange(under_way_, std::nullopt);
  if (!step) return;
  const OwnWork own;
  used_everywhere = axes_->agreement(step->outcome->sums(), step->gathered_units).used;
  has_stepped_ = true;
  if (!step->is_counted && !step->outcome->skipped()) optimizer->count_step(used_everywhere);
}

void ShardedModel::run(StepInput input) {
  const TraceScope span(mesh.trace(), Trace::Row::Optimizer, "update");
  residency->finish_fetches();
  try {
    if (ahead_) input.done = ahead_->take_over(input);
    optimizer->step(input);
  } catch (const Error& error) {
    // Others have been refused before anything changed. The other ranks wait for this one's next shards.
    is_torn_ = error.kind() == ErrorKind::Io || error.kind() == ErrorKind::Corrupt || is_bound();
    if (is_torn_) mesh.report_failure(error.what());
    throw;
  }
  residency->values_changed();
}

void ShardedModel::require_whole() const {
  require(!is_torn_, ErrorKind::Usage, "engine",
          "a step failed on its way: some of the states are of before it, some of after it",
          "make a new engine and load a checkpoint");
}

void ShardedModel::require_one_step(std::string_view call) const {
  require(!plan.updates_in_place() || !is_bound(), ErrorKind::Usage, call,
          "units were updated in place in backward: parameters are part old, part new until step()",
          "call step() first");
}

void ShardedModel::open_to_writes(std::string_view call) {
  require(!is_bound(), ErrorKind::Usage, call,
          "values are written after units were updated with their gradients in backward",
          "call step() first, or set offload.step_in_backward to off");
  forget_ahead();
}

void ShardedModel::update(StepInput input, const at::Tensor& sums) {
  input.gradient_scale = gradient_scale();
  if (optimizer->decides_on_device()) {
    const DeviceDecision decision{
        .squared_norm = axes_->squared_norm(sums),
        .used = axes_->used(sums),
        .max_norm = options.gradient_clipping,
        .sum_over_ranks = [this](const at::Tensor& own) { return axes_->sum_over_ranks(own); }};
    input.on_device = &decision;
    return run(input);
  }
  const std::shared_ptr<StepOutcome> outcome = under_way_->outcome;
  settle();
  if (outcome->skipped() && plan.updates_in_place()) {
    is_torn_ = true;
    const std::string found = first_overflow(*this);
    fail(ErrorKind::Unsupported, "step",
         "gradients are not finite" + (found.empty() ? "" : " (" + found + ")") +
             ", and units were updated in place: their states are lost",
         "resume from the last checkpoint; with offload.step_in_backward \"on\" such a step is skipped, for "
         "twice the room on disk");
  }
  if (outcome->skipped()) return;
  input.gradient_scale *= outcome->clip().coefficient;
  input.used = used_everywhere;
  input.sum_over_ranks = [this](std::span<double> own) { axes_->sum_over_ranks(own); };
  const ShardExchange between = exchange();
  if (shard_group.size() > 1) input.exchange = &between;
  const AxisReductions reductions = reductions_over(all);
  if (all.size() > 1) input.dp = &reductions;
  input.cut = cut_parameters_;
  run(input);
}

StepResult ShardedModel::step(double lr, std::optional<Betas> betas) {
  residency->require_no_pins();
  settle();
  const OwnWork own;
  const at::Tensor sums = add_up_step();
  StepResult result(lr, under_way_->outcome);
  const auto outcome = under_way_->outcome;
  update({.lr = lr, .betas = betas}, sums);
  // Without loss scaling the host does not wait for a device.
  const bool knows = options.loss_scaling.has_value() || !optimizer->decides_on_device();
  if (knows && outcome->skipped()) outcome->overflow = first_overflow(*this);
  forget_ahead();
  gradients->clear();
  if (ahead_) squares_.clear(), squares_elsewhere_.clear();
  return result;
}

void ShardedModel::begin_backward(bool boundary, double lr, std::optional<Betas> betas) {
  GradientObserver* const observer = boundary ? ahead_.get() : nullptr;
  gradients->begin_backward(boundary, observer);
  if (observer == nullptr) return;
  const OwnWork own;
  std::vector<int> order = gradients->order();
  // What nobody used in the last step will hardly be used in this one.
  std::erase_if(order, [&](int unit) {
    const auto first = used_everywhere.begin() + first_parameter_[unit];
    return has_stepped_ &&
           std::none_of(first, first + std::ssize(layout(unit).parameters), [](char used) { return used; });
  });
  ahead_->begin(order, {.gradient_scale = gradient_scale(), .lr = lr, .betas = betas});
}

void ShardedModel::on_gradient(int parameter, const at::Tensor& gradient) {
  gradients->on_gradient(parameter, gradient);
  if (ahead_) ahead_->advance(gradients->used());
}

void ShardedModel::end_backward() {
  gradients->end_backward();
  if (!ahead_ || !ahead_->is_open()) return;
  residency->finish_fetches();
  ahead_->finish(gradients->used());
}

void ShardedModel::abandon_backward() {
  forget_ahead();
  gradients->abandon();
  if (ahead_) squares_.clear(), squares_elsewhere_.clear();
}

void ShardedModel::forget_ahead() {
  if (ahead_ && !ahead_->forget()) is_torn_ = true;
}

at::Tensor ShardedModel::gather(Place place, const at::Tensor& shard) const {
  OwnWork own;
  const UnitLayout& unit = layout(place.unit);
  const UnitParameter& parameter = unit.parameters[place.parameter];
  at::Tensor part = shard.to(mesh.device(), at::kFloat);
  at::Tensor full = at::empty({unit.padded_numel}, part.options());
  const WaitPlace wait_place("full parameter");
  if (unit.padded_numel > 0) shard_group.all_gather(full, part, unit.name).wait();
  return full.narrow(0, parameter.offset, parameter.numel).view(parameter.shape).cpu().clone();
}

}  // namespace zero::detail

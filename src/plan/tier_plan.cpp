#include "zero/tier_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "plan/link_traffic.h"
#include "plan/peak.h"
#include "plan/placement_search.h"
#include "plan/rank_bytes.h"
#include "plan/traffic.h"
#include "zero/error.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

/// The kinds as a table: where a unit says its tier, and a request whether it may move.
struct Kind {
  const char* name;
  Tier StateTiers::*tier;
  bool MovableStates::*may_move;
};
constexpr std::array<Kind, 4> kKinds{
    {{"parameters", &StateTiers::parameter, &MovableStates::parameter},
     {"summed gradients", &StateTiers::gradient, &MovableStates::gradient},
     {"masters", &StateTiers::master, &MovableStates::master},
     {"optimizer states", &StateTiers::optimizer, &MovableStates::optimizer}}};

/// Bytes of one unit's states of a kind.
int64_t bytes_of(const RankPlan& rank, const Kind& kind) {
  if (kind.tier == &StateTiers::parameter) return rank.parameter_bytes;
  if (kind.tier == &StateTiers::gradient) return rank.gradient_bytes;
  return kind.tier == &StateTiers::master ? rank.master_bytes : rank.optimizer_bytes;
}

/// How often a unit's states of a kind come and go in a step.
struct Trips {
  int64_t come = 1, go = 1;
};

class Trip {
 public:
  explicit Trip(const Plan& plan) : plan_(plan), gathers_(gathers_of_step(plan)) {}

  Trips of(size_t unit, const Kind& kind) const {
    const int64_t micros = plan_.accumulation_steps;
    if (kind.tier == &StateTiers::gradient)
      return {.come = micros - 1 + 2, .go = micros};  // for the norm and the step
    if (kind.tier == &StateTiers::parameter)
      // For gathers, and for the step.
      return {.come = gathers(unit) + 1, .go = plan_.units[unit].trainable ? 1 : 0};
    return {};
  }
  /// Of a rank alone as if the unit were away.
  int64_t gathers(size_t unit) const {
    return plan_.shard_ranks == 1 ? 2 * plan_.accumulation_steps : std::max<int64_t>(gathers_[unit], 1);
  }

 private:
  const Plan& plan_;
  std::vector<int64_t> gathers_;
};

/// What single units of a plan take.
class Alone {
 public:
  Alone(const Plan& plan, bool on_cpu) : units_(plan.units), on_cpu_(on_cpu), single_(plan) {
    single_.units.clear();
  }

  RankPlan of(size_t unit, const StateTiers& tiers) {
    single_.units = {units_[unit]};
    single_.units.front().tiers = tiers;
    return rank_bytes(single_, on_cpu_);
  }
  RankPlan of(size_t unit) { return of(unit, units_[unit].tiers); }
  LinkBytes link_of(size_t unit, const StateTiers& tiers, int64_t gathers) const {
    UnitLayout layout = units_[unit];
    layout.tiers = tiers;
    return link_bytes_of(single_, layout, gathers);
  }

 private:
  const std::vector<UnitLayout>& units_;
  bool on_cpu_;
  Plan single_;
};

void add_trips(TierTraffic& traffic, Tier tier, const Trips& trips, int64_t bytes) {
  if (tier != Tier::Disk) return;
  traffic.disk_read_bytes += trips.come * bytes;
  traffic.disk_written_bytes += trips.go * bytes;
}

std::string figure(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string times(int64_t count) { return count == 1 ? "once" : std::to_string(count) + " times"; }

/// One choice of tiers on its way.
class Chooser {
 public:
  Chooser(const ModuleSpec& root, const EngineOptions& options, const RankPlaces& places,
          const OptimizerBytes& optimizer, const TierRequest& request)
      : root_(root), options_(options), places_(places), optimizer_(optimizer), request_(request) {}

  TierPlan run() {
    round_piece();
    fit_pieces();
    std::optional<TierPlan> chosen;
    const auto choose_best = [&] { return (chosen = best()).has_value(); };
    while (!in_some_way(choose_best) && halve_piece(kLeastPiece)) {
    }
    if (!chosen) chosen = leanest();
    explain(*chosen);
    return std::move(*chosen);
  }

 private:
  // Smaller ones are made only where nothing fits otherwise, and then down to the least.
  static constexpr int64_t kUsualPiece = 64 << 10, kLeastPiece = 16 << 10;
  static constexpr int64_t kPieceMultiple = 2048;  // whole blocks of a disk, in every type

  // Parameters and gradients go to a disk in whole blocks; whether they do is what the search is about.
  void round_piece() {
    const MovableStates& movable = request_.movable;
    int64_t& numel = options_.offload.piece_numel;
    if (options_.offload.path.empty() || !(movable.parameter || movable.gradient)) return;
    if (const int64_t rest = numel % kPieceMultiple; rest != 0 && numel % kStateBlockNumel == 0)
      numel += kPieceMultiple - rest;
  }

  bool halve_piece(int64_t least) {
    int64_t& numel = options_.offload.piece_numel;
    if (numel / 2 < least || numel / 2 % kPieceMultiple != 0) return false;
    numel /= 2;
    return true;
  }

  // Buffers that take more than a small part of the memory would push states out of it.
  void fit_pieces() {
    constexpr int64_t kPart = 16;
    movable_ = request_.movable;
    for (;;) {
      start();
      int64_t ring_bytes = 0;
      for (const auto& unit : units_)
        for (const UnitOption& option : unit) ring_bytes = std::max(ring_bytes, option.ring_bytes);
      if (ring_bytes <= request_.memory_bytes / kPart || !halve_piece(kUsualPiece)) return;
    }
  }

  bool can_shrink() const {
    const bool may_be_away = request_.movable.parameter && !places_.on_cpu;
    return options_.budget_bytes == -1 && base_.placements.parameter == Placement::Shard &&
           (base_.shard_ranks > 1 || may_be_away);
  }

  bool may_part() const {
    return request_.movable.parameter && base_.placements.parameter == Placement::Common &&
           options_.stage == stage_that_shards_parameters();
  }

  // As the options say, and then in ways that take less where more may leave: until act() says that it is
  // done. Otherwise the options are as before.
  template <class Act>
  bool in_some_way(Act act) {
    const EngineOptions before = options_;
    if (act()) return true;
    // Parameters that ranks share cannot leave: each has its own part then.
    if (may_part()) {
      options_.share_parameters = false;
      if (act()) return true;
    }
    if (can_shrink()) {
      options_.budget_bytes = 0;  // one slab at a time
      if (act()) return true;
    }
    options_ = before;
    return false;
  }

  // What passes through memory on its way to a disk may take more than what leaves: fewer kinds may do
  // better.
  std::optional<TierPlan> best() {
    std::optional<TierPlan> best;
    for_kinds([&] {
      std::optional<TierPlan> found = choose();
      if (found && (!best || found->seconds < best->seconds)) best = std::move(found);
    });
    return best;
  }

  // With parameters and gradients that may move, and with those that stay.
  template <class Do>
  void for_kinds(Do act) {
    for (const bool parameter : {true, false})
      for (const bool gradient : {true, false}) {
        if ((parameter && !request_.movable.parameter) || (gradient && !request_.movable.gradient)) continue;
        movable_ = request_.movable;
        movable_.parameter = parameter;
        movable_.gradient = gradient;
        start();
        act();
      }
  }

  // What the search is about: every unit's options, and what is there whatever they say.
  void start() {
    base_ = make_plan(root_, options_, places_, optimizer_);
    tiers_.clear();
    units_.clear();
    const Trip trip(base_);
    Alone alone(base_, places_.on_cpu);
    for (size_t unit = 0; unit < base_.units.size(); ++unit) add_options(unit, trip, alone);
    const RankPlan& rest = base_.rank;
    const int64_t window = std::max(rest.gather_window_bytes, window_of_away());
    begin_more_ = window + rest.bucket_bytes + request_.activations.kept +
                  std::max(request_.activations.loss, request_.activations.again) + request_.other_bytes;
    end_more_ = window + rest.bucket_bytes + rest.largest_gradient_bytes + request_.other_bytes;
  }

  // Slabs of a rank alone on a device, which owns them unless parameters are away.
  int64_t window_of_away() const {
    const bool may_be_away = movable_.parameter && base_.placements.parameter == Placement::Shard;
    if (places_.on_cpu || !may_be_away || base_.shard_ranks > 1) return 0;
    EngineOptions options = options_;
    options.tiers.parameter = Tier::Host;
    return make_plan(root_, options, places_, optimizer_).rank.gather_window_bytes;
  }

  std::vector<Tier> tiers_for(const UnitLayout& unit, const Kind& kind, int64_t bytes) const {
    const Tier given = unit.tiers.*kind.tier;
    const bool is_parameter = kind.tier == &StateTiers::parameter;
    // Parameters that every rank computes with, or that ranks share, have no other place to be.
    const bool is_fixed = !(movable_.*kind.may_move) || bytes == 0 ||
                          (is_parameter && base_.placements.parameter != Placement::Shard) ||
                          (!is_parameter && !unit.trainable);
    if (is_fixed) return {given};
    std::vector<Tier> tiers{Tier::Device};
    if (!places_.on_cpu && request_.host_bytes > 0) tiers.push_back(Tier::Host);
    if (!options_.offload.path.empty() && request_.disk_bytes > 0) tiers.push_back(Tier::Disk);
    return tiers;
  }

  void add_options(size_t unit, const Trip& trip, Alone& alone) {
    const UnitLayout& layout = base_.units[unit];
    const RankPlan whole = alone.of(unit);
    std::vector<StateTiers> all{layout.tiers};
    for (const Kind& kind : kKinds) {
      std::vector<StateTiers> more;
      for (const StateTiers& tiers : all)
        for (const Tier tier : tiers_for(layout, kind, bytes_of(whole, kind))) {
          more.push_back(tiers);
          more.back().*kind.tier = tier;
        }
      all = std::move(more);
    }
    // Beside a device one of the two updates a unit, also where the parameter is its own master.
    if (!places_.on_cpu) {
      if (whole.master_bytes == 0)
        for (StateTiers& tiers : all) tiers.master = tiers.optimizer;
      std::erase_if(all, [](const StateTiers& tiers) {
        return (tiers.master == Tier::Device) != (tiers.optimizer == Tier::Device);
      });
    }
    std::vector<UnitOption> options;
    for (const StateTiers& tiers : all) options.push_back(option_of(unit, tiers, trip, alone));
    tiers_.push_back(std::move(all));
    units_.push_back(std::move(options));
  }

  UnitOption option_of(size_t unit, const StateTiers& tiers, const Trip& trip, Alone& alone) const {
    const RankPlan rank = alone.of(unit, tiers);
    UnitOption option{.end_bytes = rank.state_bytes() - rank.offloaded_bytes,
                      .host_bytes = places_.on_cpu ? 0 : rank.tier_bytes[static_cast<size_t>(Tier::Host)],
                      .disk_bytes = rank.file_bytes,
                      .ring_bytes = places_.on_cpu ? rank.ring_bytes : 0};
    // Sums of the first micro-batch are not there when its backward begins.
    option.begin_bytes = option.end_bytes - (base_.accumulation_steps == 1 ? rank.gradient_memory_bytes : 0);
    TierTraffic traffic;
    for (const Kind& kind : kKinds)
      add_trips(traffic, tiers.*kind.tier, trip.of(unit, kind), bytes_of(rank, kind));
    const LinkBytes link = alone.link_of(unit, tiers, trip.gathers(unit));
    traffic.host_bytes = link.up + link.down;
    option.seconds = traffic.seconds(request_.rates);
    return option;
  }

  // Of the options that start() has found.
  PlacementSearch search() const {
    const auto cost_of = [this](const std::vector<int>& choice) {
      const TierPlan made = made_of(choice);
      const PlannedPeak peak = planned_peak(made.plan, request_.activations);
      return PlacementCost{.bytes = {.begin_bytes = peak.begin_bytes + request_.other_bytes,
                                     .end_bytes = peak.later_bytes + request_.other_bytes,
                                     .host_bytes = places_.on_cpu ? 0 : made.host_bytes,
                                     .disk_bytes = made.disk_bytes},
                           .seconds = made.seconds};
    };
    return {.units = units_,
            .bounds = {.begin_bytes = request_.memory_bytes,
                       .end_bytes = request_.memory_bytes,
                       .host_bytes = request_.host_bytes,
                       .disk_bytes = request_.disk_bytes},
            .more = {.begin_bytes = begin_more_, .end_bytes = end_more_},
            .cost_of = cost_of};
  }

  std::optional<TierPlan> choose() const {
    const std::optional<std::vector<int>> chosen = search().cheapest();
    return chosen ? std::optional(made_of(*chosen)) : std::nullopt;
  }

  TierPlan made_of(const std::vector<int>& chosen) const {
    TierPlan result;
    EngineOptions options = options_;
    for (size_t unit = 0; unit < chosen.size(); ++unit)
      options.unit_tiers[base_.units[unit].name] = tiers_[unit][static_cast<size_t>(chosen[unit])];
    result.unit_tiers = options.unit_tiers;
    result.budget_bytes = options.budget_bytes;
    result.share_parameters = options.share_parameters;
    result.piece_numel = options.offload.piece_numel;
    result.plan = make_plan(root_, options, places_, optimizer_);
    result.peak_bytes = peak_bytes(result.plan, request_.activations) + request_.other_bytes;
    result.host_bytes = result.plan.rank.host_bytes;
    result.disk_bytes = result.plan.rank.file_bytes;
    result.traffic = tier_traffic(result.plan);
    result.seconds = result.traffic.seconds(request_.rates);
    return result;
  }

  // With as much away as may be, of the kinds that do the best. Throws where that does not fit either.
  TierPlan leanest() {
    std::optional<TierPlan> least;
    in_some_way([&] {
      for_kinds([&] {
        TierPlan found = made_of(search().leanest());
        if (!least || found.peak_bytes < least->peak_bytes) least = std::move(found);
      });
      return false;
    });
    const bool fits = least->peak_bytes <= request_.memory_bytes &&
                      (places_.on_cpu || least->host_bytes <= request_.host_bytes) &&
                      least->disk_bytes <= request_.disk_bytes;
    if (!fits) fail_with_least(*least);
    return std::move(*least);
  }

  [[noreturn]] void fail_with_least(const TierPlan& leanest) const {
    const RankPlan& rank = leanest.plan.rank;
    const int64_t least = leanest.peak_bytes;
    if (least > request_.memory_bytes)
      fail(ErrorKind::Config, "offload.memory",
           "a rank's memory is " + human_bytes(request_.memory_bytes) + ", but wherever states are, " +
               human_bytes(least) + " (" + std::to_string(least) +
               " bytes) are needed: activations and loss " +
               human_bytes(request_.activations.kept +
                           std::max(request_.activations.loss, request_.activations.again)) +
               ", resident slabs " + human_bytes(rank.gather_window_bytes) + ", gradient buckets " +
               human_bytes(rank.bucket_bytes) + ", the largest gradient " +
               human_bytes(rank.largest_gradient_bytes) + ", other states the rest",
           options_.offload.path.empty() && places_.on_cpu
               ? "name a directory on a disk (offload.path), make the micro-batch smaller or recompute"
               : "give more, make the micro-batch smaller, recompute, or let more kinds be \"auto\"");
    fail(ErrorKind::Config, places_.on_cpu ? "offload.disk_space" : "offload.host_memory",
         "what does not fit " + human_bytes(request_.memory_bytes) + " of a rank's memory does not fit " +
             (places_.on_cpu ? std::string() : human_bytes(request_.host_bytes) + " of the host's and ") +
             human_bytes(request_.disk_bytes) + " of the disk either",
         "give more of one of them");
  }

  void explain(TierPlan& result) const;

  const ModuleSpec& root_;
  EngineOptions options_;
  const RankPlaces& places_;
  const OptimizerBytes& optimizer_;
  const TierRequest& request_;

  MovableStates movable_;
  Plan base_;
  std::vector<std::vector<StateTiers>> tiers_;  // by unit and option
  std::vector<std::vector<UnitOption>> units_;
  int64_t begin_more_ = 0, end_more_ = 0;
};

/// What of a kind is in a tier.
struct StateShare {
  int64_t bytes = 0, units = 0, all_bytes = 0, all_units = 0;
};

StateShare share_of(const Plan& plan, const Kind& kind, Tier tier, bool on_cpu) {
  StateShare share;
  Alone alone(plan, on_cpu);
  for (size_t unit = 0; unit < plan.units.size(); ++unit) {
    const StateTiers& tiers = plan.units[unit].tiers;
    const int64_t bytes = bytes_of(alone.of(unit), kind);
    if (bytes == 0) continue;
    share.all_bytes += bytes;
    ++share.all_units;
    if (tiers.*kind.tier != tier) continue;
    share.bytes += bytes;
    ++share.units;
  }
  return share;
}

std::string shares_in(const Plan& plan, Tier tier, bool on_cpu) {
  std::string text;
  for (const Kind& kind : kKinds) {
    const StateShare share = share_of(plan, kind, tier, on_cpu);
    if (share.bytes == 0) continue;
    text += (text.empty() ? "" : ", ") + std::string(kind.name) + " " + human_bytes(share.bytes);
    if (share.units < share.all_units)
      text += " (" + std::to_string(share.units) + " of " + std::to_string(share.all_units) + " units)";
  }
  return text.empty() ? "no states" : text;
}

void Chooser::explain(TierPlan& result) const {
  const Plan& plan = result.plan;
  std::string text = "A rank's memory of " + human_bytes(request_.memory_bytes) + " holds " +
                     shares_in(plan, Tier::Device, places_.on_cpu);
  if (places_.on_cpu && plan.rank.tier_bytes[static_cast<size_t>(Tier::Host)] > 0)
    text += ", " + shares_in(plan, Tier::Host, true);
  text += "; at the peak " + human_bytes(result.peak_bytes) + " with activations and buffers.";
  if (result.host_bytes > 0) text += " On the host: " + shares_in(plan, Tier::Host, places_.on_cpu) + ".";
  if (result.disk_bytes > 0) text += " On disk: " + shares_in(plan, Tier::Disk, places_.on_cpu) + ".";
  if (result.host_bytes == 0 && result.disk_bytes == 0) {
    result.explained = text + " Everything fits, so nothing is moved.";
    return;
  }
  text += " What stays is what would move the most for each byte: in a step";
  const Trip trip(base_);
  std::string trips;
  for (const Kind& kind : kKinds) {
    if (!(request_.movable.*kind.may_move) || share_of(plan, kind, Tier::Device, true).all_bytes == 0)
      continue;
    size_t unit = 0;
    while (unit + 1 < base_.units.size() && !base_.units[unit].trainable) ++unit;
    const Trips each = trip.of(unit, kind);
    trips += (trips.empty() ? " " : ", ") + std::string(kind.name) + " come " + times(each.come) +
             " and go " + times(each.go);
  }
  text += trips + ".";
  if (result.budget_bytes == 0 && plan.rank.gather_window_bytes > 0)
    text += " Only one slab is resident at a time.";
  if (result.traffic.disk_read_bytes + result.traffic.disk_written_bytes > 0)
    text += " A step reads " + human_bytes(result.traffic.disk_read_bytes) + " from the disk and writes " +
            human_bytes(result.traffic.disk_written_bytes) + ",";
  if (result.traffic.host_bytes > 0)
    text += " " + human_bytes(result.traffic.host_bytes) + " go to and from the host,";
  result.explained =
      text + " " + figure("%.3g", result.seconds) + " s at " +
      (result.disk_bytes > 0 ? human_bytes(static_cast<int64_t>(request_.rates.disk_read)) + "/s and " +
                                   human_bytes(static_cast<int64_t>(request_.rates.disk_write)) + "/s"
                             : human_bytes(static_cast<int64_t>(request_.rates.host)) + "/s") +
      ".";
}

// Within a given memory no parameters wait beside gradients, unless that was asked for.
void wait_with_steps(EngineOptions& options) {
  StepInBackward& ahead = options.offload.step_in_backward;
  if (ahead == StepInBackward::Auto) ahead = StepInBackward::Off;
}

}  // namespace

double TierTraffic::seconds(const TierRates& rates) const {
  return static_cast<double>(disk_read_bytes) / rates.disk_read +
         static_cast<double>(disk_written_bytes) / rates.disk_write +
         static_cast<double>(host_bytes) / rates.host;
}

TierTraffic tier_traffic(const Plan& plan) {
  TierTraffic traffic;
  // Of a disk whole blocks.
  traffic.disk_read_bytes = plan.rank.step_read_bytes;
  traffic.disk_written_bytes = plan.rank.step_written_bytes;
  traffic.host_bytes = plan.rank.step_up_bytes + plan.rank.step_down_bytes;
  return traffic;
}

void use_tiers(EngineOptions& options, const TierPlan& tiers) {
  wait_with_steps(options);
  options.unit_tiers = tiers.unit_tiers;
  options.budget_bytes = tiers.budget_bytes;
  options.share_parameters = tiers.share_parameters;
  options.offload.piece_numel = tiers.piece_numel;
}

TierPlan choose_tiers(const ModuleSpec& root, EngineOptions options, const RankPlaces& places,
                      const OptimizerBytes& optimizer, const TierRequest& request) {
  wait_with_steps(options);
  require(request.memory_bytes > 0, ErrorKind::Config, "offload.memory",
          "expected more than 0 bytes, got " + std::to_string(request.memory_bytes));
  const TierRates& rates = request.rates;
  for (const double rate : {rates.host, rates.disk_read, rates.disk_write})
    require(rate > 0 && std::isfinite(rate), ErrorKind::Config, "rates",
            "expected bytes a second above 0, got " + std::to_string(rate));
  return Chooser(root, options, places, optimizer, request).run();
}

}  // namespace zero

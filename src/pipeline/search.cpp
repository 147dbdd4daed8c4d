#include "pipeline/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "zero/error.h"

namespace zero::pipeline {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSlack = 1e-9;
constexpr size_t kDescents = 3;
constexpr double kGaps[] = {0, 0.25, 0.5, 0.75, 0.9, 1};

/// What a rank would do next, and when.
struct Choice {
  double start = kNever;
  Action action;
};

/// Settings of one play.
struct Setting {
  std::vector<int> first;           // by rank: forwards before the first backward
  std::vector<double> gap;          // by rank: a wait of this share of a weights' pass is filled with one
  std::vector<char> forward_ahead;  // by rank: in place of a wait for a backward, a forward that fits into it
};

double start_or_never(const Weaver& weaver, int rank, const Action& action) {
  if (action.micro_batch == weaver.shape().micro_batches) return kNever;
  return weaver.start_of(rank, action).value_or(kNever);
}

Action next_of(const Weaver& weaver, int rank, Pass pass, int chunk) {
  return {pass, chunk, weaver.done(rank, pass, chunk)};
}

/// Places actions in the order of their starts until all is placed. `choose(rank)` says what a rank would do
/// next, which changes only where its own row or a message to it does. True if it came to an end.
template <class Choose>
bool play(Weaver& weaver, Choose choose) {
  const Shape& shape = weaver.shape();
  std::vector<Choice> choices;
  for (int rank = 0; rank < shape.ranks; ++rank) choices.push_back(choose(rank));
  for (int64_t left = int64_t{3} * shape.stages() * shape.micro_batches; left > 0; --left) {
    const auto best = std::ranges::min_element(choices, {}, &Choice::start);
    if (best->start == kNever) return false;
    const int rank = static_cast<int>(best - choices.begin());
    const int stage = shape.stage_of(rank, best->action.chunk);
    weaver.place(rank, best->action);
    choices[rank] = choose(rank);
    for (int near : {stage - 1, stage + 1})
      if (near >= 0 && near < shape.stages()) choices[shape.rank_of(near)] = choose(shape.rank_of(near));
  }
  return true;
}

/// One stage a rank.
class Straight {
 public:
  Straight(Weaver& weaver, const StageCosts& costs, const Setting& setting, double limit)
      : weaver_(weaver), costs_(costs), setting_(setting), limit_(limit) {}

  Choice choose(int rank) const {
    const Action forward = next_of(weaver_, rank, Pass::Forward, 0),
                 backward = next_of(weaver_, rank, Pass::BackwardInput, 0),
                 weight = next_of(weaver_, rank, Pass::BackwardWeight, 0);
    const double free = weaver_.free_at(rank), forward_start = start_or_never(weaver_, rank, forward),
                 backward_start = start_or_never(weaver_, rank, backward);
    const bool full = weaver_.kept(rank) + 1 > limit_ + kSlack,
               pending = weight.micro_batch < backward.micro_batch;
    Pass pass = turn(rank, forward.micro_batch, backward.micro_batch);
    if (setting_.forward_ahead[rank] && pass == Pass::BackwardInput && !full && forward_start < kNever &&
        forward_start + costs_.forward <= backward_start)
      pass = Pass::Forward;
    if (pass == Pass::Forward && full) {
      if (pending) return {free, weight};
      pass = Pass::BackwardInput;
    }
    const double start = pass == Pass::Forward ? forward_start : backward_start;
    if (pending && (start == kNever || start - free >= setting_.gap[rank] * costs_.backward_weight - kSlack))
      return {free, weight};
    return {start, pass == Pass::Forward ? forward : backward};
  }

 private:
  Pass turn(int rank, int forwards, int backwards) const {
    const int all = weaver_.shape().micro_batches, first = std::min(all, setting_.first[rank]);
    if (forwards == all) return Pass::BackwardInput;
    if (forwards < first || forwards == backwards) return Pass::Forward;
    // After the first ones: backward, forward, backward, ...
    return forwards - backwards >= first ? Pass::BackwardInput : Pass::Forward;
  }

  const Weaver& weaver_;
  const StageCosts& costs_;
  const Setting& setting_;
  double limit_;
};

enum class Prefer { Turn, Forward, Backward };
constexpr Prefer kPreferences[] = {Prefer::Turn, Prefer::Forward, Prefer::Backward};

/// Settings of one play in a V, by rank but for the costs.
struct FoldedSetting {
  StageCosts costs;            // that the order is made for
  std::vector<Prefer> prefer;  // of what could start at the same time
  std::vector<double> gap;     // as in Setting
  std::vector<char> spare;     // a forward of the first stage leaves room for one of the second
};

/// Two stages a rank, in a V: of what could start first, in turn forwards and backwards.
class Folded {
 public:
  Folded(Weaver& weaver, const FoldedSetting& setting, double limit)
      : weaver_(weaver), setting_(setting), limit_(limit) {}

  Choice choose(int rank) const {
    const double free = weaver_.free_at(rank);
    Choice best;
    int best_order = 0;
    // The deeper stage first: what it finishes lets memory go.
    for (const auto& [pass, chunk] : {std::pair{Pass::Forward, 1},
                                      {Pass::Forward, 0},
                                      {Pass::BackwardInput, 1},
                                      {Pass::BackwardInput, 0}}) {
      const Action action = next_of(weaver_, rank, pass, chunk);
      const double start = start_or_never(weaver_, rank, action);
      if (start == kNever || (pass == Pass::Forward && !fits(rank, chunk))) continue;
      const int order = pass == wanted(rank) ? 0 : 1;
      if (start < best.start - kSlack || (start <= best.start + kSlack && order < best_order)) {
        best = {start, action};
        best_order = order;
      }
    }
    const std::optional<Action> weight = pending(rank);
    if (weight && (best.start == kNever ||
                   (best.start > free && best.start - free >= setting_.gap[rank] * weight_cost() - kSlack)))
      return {free, *weight};
    return best;
  }

 private:
  double weight_cost() const { return setting_.costs.of(Pass::BackwardWeight, 2); }

  // Without spare room all could wait for room.
  bool fits(int rank, int chunk) const {
    const double room = chunk == 1 || !setting_.spare[rank] ? 0.5 : 1;
    return weaver_.kept(rank) + room <= limit_ + kSlack;
  }

  Pass wanted(int rank) const {
    const Prefer prefer = setting_.prefer[rank];
    if (prefer != Prefer::Turn) return prefer == Prefer::Forward ? Pass::Forward : Pass::BackwardInput;
    const auto& row = weaver_.table().rows[rank];
    for (size_t i = row.size(); i-- > 0;)
      if (row[i].pass != Pass::BackwardWeight)
        return row[i].pass == Pass::Forward ? Pass::BackwardInput : Pass::Forward;
    return Pass::Forward;
  }

  std::optional<Action> pending(int rank) const {
    for (int chunk : {1, 0}) {
      const Action weight = next_of(weaver_, rank, Pass::BackwardWeight, chunk);
      if (weight.micro_batch < weaver_.done(rank, Pass::BackwardInput, chunk)) return weight;
    }
    return std::nullopt;
  }

  const Weaver& weaver_;
  const FoldedSetting& setting_;
  double limit_;
};

double limit_of(int ranks, const SearchOptions& options) {
  const double kept = options.kept_micro_batches == 0 ? ranks : options.kept_micro_batches;
  require(std::isfinite(kept) && kept >= 1, ErrorKind::Config, "pipeline",
          "kept_micro_batches is " + std::to_string(options.kept_micro_batches) + ", expected 1 or more");
  return kept;
}

double cost_of(const Weaver& weaver) {
  double cost = 0;
  for (int rank = 0; rank < weaver.shape().ranks; ++rank)
    cost = std::max(cost, weaver.free_at(rank) - weaver.began_at(rank));
  return cost;
}

/// The best table so far.
struct Best {
  std::optional<Table> table;
  double cost = kNever;

  void offer(const Table& offered, double offered_cost) {
    if (offered_cost >= cost - kSlack) return;
    cost = offered_cost;
    table = offered;
  }
};

/// How many forwards each rank may do before its first backward: 1F1B's, ZB-H2's, and what lies between and
/// beyond, as far as the memory goes.
std::vector<std::vector<int>> first_forwards(int ranks, double limit) {
  const int most = static_cast<int>(limit + kSlack);
  std::vector<std::vector<int>> all;
  for (double slope : {1.0, 1.25, 1.5, 1.75, 2.0}) {
    std::vector<int> first;
    for (int rank = 0; rank < ranks; ++rank)
      first.push_back(std::clamp(static_cast<int>(slope * (ranks - rank)) - (slope == 2.0), 1, most));
    all.push_back(first);
  }
  for (int step : {0, 1, 2}) {
    std::vector<int> first;
    for (int rank = 0; rank < ranks; ++rank) first.push_back(std::clamp(most - step * rank, 1, most));
    all.push_back(first);
  }
  return all;
}

/// A setting and what it costs.
template <class Setting>
struct Played {
  Setting setting;
  double cost = kNever;

  /// Takes the other one if `cost_of` it is smaller; returns whether it did.
  template <class Cost>
  bool offer(const Setting& other, Cost cost_of) {
    const double offered = cost_of(other);
    if (offered >= cost - kSlack) return false;
    cost = offered;
    setting = other;
    return true;
  }
};

/// Changes one rank's setting at a time for as long as that helps.
template <class Cost>
void descend(Played<Setting>& played, int most, Cost cost_of) {
  const int ranks = static_cast<int>(played.setting.first.size());
  for (bool better = true; better;) {
    better = false;
    for (int rank = 0; rank < ranks; ++rank) {
      auto offer = [&](auto change) {
        Setting setting = played.setting;
        change(setting);
        better |= played.offer(setting, cost_of);
      };
      for (int step : {-1, 1, -2, 2, -4, 4})
        offer([&](Setting& s) { s.first[rank] = std::clamp(s.first[rank] + step, 1, most); });
      for (double gap : kGaps) offer([&](Setting& s) { s.gap[rank] = gap; });
      offer([&](Setting& s) { s.forward_ahead[rank] = !s.forward_ahead[rank]; });
    }
  }
}

template <class Cost>
void descend(Played<FoldedSetting>& played, Cost cost_of) {
  const int ranks = static_cast<int>(played.setting.prefer.size());
  for (bool better = true; better;) {
    better = false;
    for (int rank = 0; rank < ranks; ++rank) {
      auto offer = [&](auto change) {
        FoldedSetting setting = played.setting;
        change(setting);
        better |= played.offer(setting, cost_of);
      };
      for (double gap : kGaps) offer([&](FoldedSetting& s) { s.gap[rank] = gap; });
      for (Prefer prefer : kPreferences) offer([&](FoldedSetting& s) { s.prefer[rank] = prefer; });
      offer([&](FoldedSetting& s) { s.spare[rank] = !s.spare[rank]; });
    }
  }
}

/// Ranks alike, for the costs and for rounded ones: orders made for those are often better, as they are
/// regular.
std::vector<FoldedSetting> first_settings(int ranks, const StageCosts& costs) {
  std::vector<StageCosts> rounded = {costs};
  for (double weight : {1.0, 0.8, 0.7, 0.6, 0.5})
    for (double backward : {1.0, 1.1})
      rounded.push_back(
          {costs.forward, backward * costs.forward, weight * costs.forward, 0, costs.weight_share});
  std::vector<FoldedSetting> all;
  for (const StageCosts& made_for : rounded)
    for (Prefer prefer : kPreferences)
      for (double gap : {0.0, 0.5, 1.0})
        for (char spare : {0, 1})
          all.push_back({made_for, std::vector<Prefer>(ranks, prefer), std::vector<double>(ranks, gap),
                         std::vector<char>(ranks, spare)});
  return all;
}

}  // namespace

Table search(int ranks, int micro_batches, const SearchOptions& options) {
  const Shape shape{ranks, micro_batches, 1, Placement::Loop};
  check_shape(shape);
  const double limit = limit_of(ranks, options);
  Best best;
  auto play_setting = [&](const Setting& setting) {
    Weaver weaver(shape, options.costs);
    const Straight straight(weaver, options.costs, setting, limit);
    if (!play(weaver, [&](int rank) { return straight.choose(rank); })) return kNever;
    const double cost = cost_of(weaver);
    best.offer(weaver.table(), cost);
    return cost;
  };
  // The best setting of each way to begin, and from the best of those downhill.
  std::vector<Played<Setting>> begun;
  for (const std::vector<int>& first : first_forwards(ranks, limit)) {
    Played<Setting> played;
    for (double gap : kGaps)
      for (char forward_ahead : {0, 1})
        played.offer({first, std::vector<double>(ranks, gap), std::vector<char>(ranks, forward_ahead)},
                     play_setting);
    begun.push_back(std::move(played));
  }
  require(best.table.has_value(), ErrorKind::Internal, "pipeline", "no schedule comes to an end");
  std::ranges::stable_sort(begun, {}, &Played<Setting>::cost);
  begun.resize(std::min(begun.size(), kDescents));
  for (Played<Setting>& played : begun) descend(played, static_cast<int>(limit + kSlack), play_setting);
  return *best.table;
}

Table search_v(int ranks, int micro_batches, const SearchOptions& options) {
  const Shape shape{ranks, micro_batches, 2, Placement::V};
  check_shape(shape);
  const double limit = limit_of(ranks, options);
  Best best;
  auto play_setting = [&](const FoldedSetting& setting) {
    Weaver weaver(shape, setting.costs);
    const Folded folded(weaver, setting, limit);
    if (!play(weaver, [&](int rank) { return folded.choose(rank); })) return kNever;
    const double cost = cost_of(replay(weaver.table(), options.costs));
    best.offer(weaver.table(), cost);
    return cost;
  };
  Played<FoldedSetting> begun;
  for (const FoldedSetting& setting : first_settings(ranks, options.costs))
    begun.offer(setting, play_setting);
  require(best.table.has_value(), ErrorKind::Internal, "pipeline", "no schedule comes to an end");
  descend(begun, play_setting);
  return *best.table;
}

}  // namespace zero::pipeline

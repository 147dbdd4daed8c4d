#include "plan/stage_activations.h"

#include <algorithm>
#include <list>
#include <set>
#include <utility>

namespace zero {
namespace {

using pipeline::Action;
using pipeline::Pass;

using Place = std::pair<int, int>;  // stage and micro-batch

/// Where actions are in their ranks' rows.
class Rows {
 public:
  explicit Rows(const pipeline::Table& table) : micro_batches_(table.shape.micro_batches) {
    const pipeline::Shape& shape = table.shape;
    forwards_.resize(static_cast<size_t>(shape.stages()) * shape.micro_batches);
    backwards_.resize(forwards_.size());
    for (int r = 0; r < shape.ranks; ++r)
      for (int at = 0; at < static_cast<int>(table.rows[r].size()); ++at) {
        const Action& action = table.rows[r][at];
        auto& places = action.pass == Pass::Forward ? forwards_ : backwards_;
        places[index_of({shape.stage_of(r, action.chunk), action.micro_batch})] = at;
      }
  }
  int forward(const Place& place) const { return forwards_[index_of(place)]; }
  int backward(const Place& place) const { return backwards_[index_of(place)]; }

 private:
  size_t index_of(const Place& place) const {
    return static_cast<size_t>(place.first) * micro_batches_ + place.second;
  }
  int micro_batches_;
  std::vector<int> forwards_, backwards_;
};

class Walk {
 public:
  Walk(const pipeline::Shape& shape, const Rows& rows, int rank, const StageActivations& bytes)
      : shape_(shape), rows_(rows), rank_(rank), bytes_(bytes) {}

  void forward(int stage, int micro_batch) {
    if (stage > 0) receive(stage - 1, rows_.forward({stage - 1, micro_batch}));
    under_way_.insert({stage, micro_batch});
    most_ = std::max(most_, held());
    if (is_last(stage)) losses_ += 1;
    if (!is_last(stage)) send(stage, stage + 1, micro_batch, rows_.forward({stage + 1, micro_batch}), true);
  }
  void backward(int stage, int micro_batch) {
    if (!is_last(stage)) receive(stage + 1, rows_.backward({stage + 1, micro_batch}));
    under_way_.erase({stage, micro_batch});
    if (is_last(stage)) losses_ -= 1;
    if (stage > 0) send(stage, stage - 1, micro_batch, rows_.backward({stage - 1, micro_batch}), false);
  }
  double most() const { return most_; }

 private:
  struct Sent {
    Place from;
    int to, taken_at;
    bool is_result;  // the memory of a stage's result, while that is kept
  };

  bool is_last(int stage) const { return stage + 1 == shape_.stages(); }
  void receive(int from_stage, int made_at) {
    const int from = shape_.rank_of(from_stage);
    if (from != rank_)
      std::erase_if(sent_, [&](const Sent& sent) { return sent.to == from && sent.taken_at < made_at; });
  }
  void send(int stage, int to_stage, int micro_batch, int taken_at, bool is_result) {
    const int to = shape_.rank_of(to_stage);
    if (to != rank_) sent_.push_back({{stage, micro_batch}, to, taken_at, is_result});
  }
  double held() const {
    double bytes = losses_ * bytes_.after_loss;
    for (const Place& place : under_way_) bytes += bytes_.kept[static_cast<size_t>(place.first)];
    for (const Sent& sent : sent_)
      if (!sent.is_result || !under_way_.contains(sent.from)) bytes += bytes_.message;
    return bytes;
  }

  const pipeline::Shape& shape_;
  const Rows& rows_;
  int rank_;
  const StageActivations& bytes_;
  std::set<Place> under_way_;
  std::list<Sent> sent_;
  double losses_ = 0, most_ = 0;
};

}  // namespace

std::vector<double> most_kept(const pipeline::Table& table, const StageActivations& bytes) {
  const Rows rows(table);
  std::vector<double> most;
  for (int rank = 0; rank < table.shape.ranks; ++rank) {
    Walk walk(table.shape, rows, rank, bytes);
    for (const Action& action : table.rows[rank]) {
      const int stage = table.shape.stage_of(rank, action.chunk);
      if (action.pass == Pass::Forward)
        walk.forward(stage, action.micro_batch);
      else
        walk.backward(stage, action.micro_batch);
    }
    most.push_back(walk.most());
  }
  return most;
}

}  // namespace zero

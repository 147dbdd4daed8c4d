#pragma once
// Where a pipeline's stages are, and how tensors get from one to another: by message, or from hand to hand
// where one rank has both.

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "pipeline/table.h"
#include "stages/messages.h"

namespace zero::detail {

class Places {
 public:
  /// `table` has been checked.
  Places(pipeline::Table table, int rank, Group pipeline, at::Device device);

  const pipeline::Shape& shape() const { return table_.shape; }
  int rank() const { return rank_; }
  const std::vector<pipeline::Action>& own_actions() const { return table_.rows[rank_]; }
  int stage_of(const pipeline::Action& action) const { return table_.shape.stage_of(rank_, action.chunk); }
  bool is_here(int stage) const { return table_.shape.rank_of(stage) == rank_; }

  /// From one stage to another. With `pass` the receiver takes it: BackwardInput where it goes back.
  void give(const std::vector<HeldTensor>& tensors, const MessageName& name, int to_stage);
  std::vector<HeldTensor> take(const MessageName& name, int at_stage);

  void finish() { messages_.finish(); }
  /// Off: what follows is not in the table's order, and what is sent is kept until finish().
  void follow_table(bool follows) { follows_ = follows; }
  void abandon();

 private:
  using Kind = MessageName::Kind;
  int action_of(int stage, int micro_batch, bool forward, bool weights) const;
  int taken_at(const MessageName& name, int stage) const;
  int made_at(const MessageName& name) const;

  pipeline::Table table_;
  int rank_;
  bool follows_ = true;
  Messages messages_;
  std::map<std::tuple<Kind, int, int, int>, std::vector<std::vector<HeldTensor>>> in_hand_;
  std::vector<int> forwards_, backwards_, weights_;  // place in its rank's row, by stage and micro-batch
};

}  // namespace zero::detail

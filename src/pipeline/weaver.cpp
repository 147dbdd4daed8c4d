#include "pipeline/weaver.h"

#include <algorithm>
#include <string>

#include "zero/error.h"

namespace zero::pipeline {
namespace {

constexpr int kPasses = 4;

std::string place_of(int rank) { return "pipeline schedule, rank " + std::to_string(rank); }

bool ends_input(Pass pass) { return pass == Pass::Backward || pass == Pass::BackwardInput; }
bool ends_weight(Pass pass) { return pass == Pass::Backward || pass == Pass::BackwardWeight; }

void check_cost(const char* what, double value, double most) {
  if (!(value >= 0 && value <= most))
    fail(ErrorKind::Config, "pipeline",
         std::string(what) + " is " + std::to_string(value) + ", expected 0 to " + std::to_string(most));
}

/// Places what can be placed of one row; true if that was anything.
bool advance(Weaver& weaver, const Table& table, int rank, size_t& next) {
  const std::vector<Action>& row = table.rows[rank];
  const size_t before = next;
  while (next < row.size() && weaver.start_of(rank, row[next])) weaver.place(rank, row[next++]);
  return next != before;
}

void check_ends(const Table& table, const std::vector<size_t>& next) {
  std::string waiting;
  for (int rank = 0; rank < table.shape.ranks; ++rank)
    if (next[rank] < table.rows[rank].size())
      waiting += (waiting.empty() ? "rank " : ", rank ") + std::to_string(rank) + " before " +
                 to_string(table.rows[rank][next[rank]], table.shape);
  require(waiting.empty(), ErrorKind::Internal, "pipeline schedule", "ranks wait for ever: " + waiting);
}

void check_complete(const Weaver& weaver) {
  const Shape& shape = weaver.shape();
  for (int rank = 0; rank < shape.ranks; ++rank)
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const int whole = weaver.done(rank, Pass::Backward, chunk);
      const bool complete = weaver.done(rank, Pass::Forward, chunk) == shape.micro_batches &&
                            weaver.done(rank, Pass::BackwardInput, chunk) + whole == shape.micro_batches &&
                            weaver.done(rank, Pass::BackwardWeight, chunk) + whole == shape.micro_batches;
      if (!complete)
        fail(ErrorKind::Internal, place_of(rank),
             "not every micro-batch goes forward and backward through chunk " + std::to_string(chunk));
    }
}

}  // namespace

double StageCosts::of(Pass pass, int chunks) const {
  const double whole = pass == Pass::Forward         ? forward
                       : pass == Pass::BackwardInput ? backward_input
                       : pass == Pass::Backward      ? backward_input + backward_weight
                                                     : backward_weight;
  return whole / chunks;
}

Weaver::Weaver(const Shape& shape, const StageCosts& costs) : shape_(shape), costs_(costs) {
  check_shape(shape);
  check_cost("forward", costs.forward, 1e12);
  check_cost("backward_input", costs.backward_input, 1e12);
  check_cost("backward_weight", costs.backward_weight, 1e12);
  check_cost("transfer", costs.transfer, 1e12);
  check_cost("weight_share", costs.weight_share, 1);
  table_.shape = shape;
  table_.rows.resize(shape.ranks);
  ranks_.resize(shape.ranks);
  const Ends nothing(int64_t{shape.stages()} * shape.micro_batches, -1);
  forward_ = input_ = weight_ = nothing;
  done_.assign(int64_t{shape.stages()} * kPasses, 0);
}

std::optional<double> Weaver::arrival(const Ends& ends, int from_stage, int micro_batch, int rank) const {
  const double end = end_of(ends, from_stage, micro_batch);
  if (end < 0) return std::nullopt;
  return end + (shape_.rank_of(from_stage) == rank ? 0 : costs_.transfer);
}

std::optional<double> Weaver::start_of(int rank, const Action& action) const {
  const int stage = shape_.stage_of(rank, action.chunk), micro_batch = action.micro_batch;
  std::optional<double> input = 0;
  if (action.pass == Pass::Forward) {
    if (stage > 0) input = arrival(forward_, stage - 1, micro_batch, rank);
  } else if (action.pass == Pass::BackwardWeight) {
    input = arrival(input_, stage, micro_batch, rank);
  } else {
    input = arrival(forward_, stage, micro_batch, rank);
    if (input && stage + 1 < shape_.stages()) input = arrival(input_, stage + 1, micro_batch, rank);
  }
  if (!input) return std::nullopt;
  return std::max(*input, ranks_[rank].free_at);
}

void Weaver::place(int rank, const Action& action) {
  const std::optional<double> start = start_of(rank, action);
  if (!start)
    fail(ErrorKind::Internal, place_of(rank), to_string(action, shape_) + " comes before what it needs");
  const int stage = shape_.stage_of(rank, action.chunk), micro_batch = action.micro_batch;
  const bool again = (action.pass == Pass::Forward && end_of(forward_, stage, micro_batch) >= 0) ||
                     (ends_input(action.pass) && end_of(input_, stage, micro_batch) >= 0) ||
                     (ends_weight(action.pass) && end_of(weight_, stage, micro_batch) >= 0);
  if (again) fail(ErrorKind::Internal, place_of(rank), to_string(action, shape_) + " comes twice");

  Rank& state = ranks_[rank];
  const double cost = costs_.of(action.pass, shape_.chunks), end = *start + cost;
  if (table_.rows[rank].empty()) state.began_at = *start;
  state.starts.push_back(*start);
  state.free_at = end;
  state.busy += cost;
  if (action.pass == Pass::Forward) end_of(forward_, stage, micro_batch) = end;
  if (ends_input(action.pass)) end_of(input_, stage, micro_batch) = end;
  if (ends_weight(action.pass)) end_of(weight_, stage, micro_batch) = end;
  keep(state, action.pass);
  ++done_[(int64_t{rank} * shape_.chunks + action.chunk) * kPasses + static_cast<int>(action.pass)];
  table_.rows[rank].push_back(action);
}

void Weaver::keep(Rank& rank, Pass pass) {
  const double share = pass == Pass::Forward         ? 1
                       : pass == Pass::Backward      ? -1
                       : pass == Pass::BackwardInput ? costs_.weight_share - 1
                                                     : -costs_.weight_share;
  rank.kept += share / shape_.chunks;
  rank.peak_kept = std::max(rank.peak_kept, rank.kept);
}

int Weaver::done(int rank, Pass pass, int chunk) const {
  return done_[(int64_t{rank} * shape_.chunks + chunk) * kPasses + static_cast<int>(pass)];
}

Weaver replay(const Table& table, const StageCosts& costs) {
  Weaver weaver(table.shape, costs);
  std::vector<size_t> next(table.rows.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < table.shape.ranks; ++rank) moved |= advance(weaver, table, rank, next[rank]);
  }
  check_ends(table, next);
  check_complete(weaver);
  return weaver;
}

}  // namespace zero::pipeline

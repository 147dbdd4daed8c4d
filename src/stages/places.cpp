#include "stages/places.h"

#include <limits>
#include <utility>

#include "zero/error.h"

namespace zero::detail {

using pipeline::Action;
using pipeline::Pass;

Places::Places(pipeline::Table table, int rank, Group pipeline, at::Device device)
    : table_(std::move(table)),
      rank_(rank),
      messages_(std::move(pipeline), device, table_.shape.stages(), table_.shape.micro_batches) {
  const pipeline::Shape& shape = table_.shape;
  const auto count = static_cast<size_t>(shape.stages()) * shape.micro_batches;
  forwards_.resize(count);
  backwards_.resize(count);
  weights_.resize(count);
  for (int r = 0; r < shape.ranks; ++r)
    for (int at = 0; at < std::ssize(table_.rows[r]); ++at) {
      const Action& action = table_.rows[r][at];
      const int index = shape.stage_of(r, action.chunk) * shape.micro_batches + action.micro_batch;
      if (action.pass == Pass::Forward) forwards_[index] = at;
      if (action.pass == Pass::Backward || action.pass == Pass::BackwardInput) backwards_[index] = at;
      if (action.pass == Pass::Backward || action.pass == Pass::BackwardWeight) weights_[index] = at;
    }
}

// Sums of tied gradients come after the last action.
int Places::made_at(const MessageName& name) const {
  if (!follows_) return 0;
  if (name.kind == Kind::Totals) return std::numeric_limits<int>::max();
  const int index = name.stage * table_.shape.micro_batches + name.micro_batch;
  // Tied gradients are given with the gradients of inputs.
  return name.kind == Kind::Activations ? forwards_[index] : backwards_[index];
}

int Places::taken_at(const MessageName& name, int stage) const {
  if (!follows_ || name.kind == Kind::Totals) return std::numeric_limits<int>::max();
  const int index = stage * table_.shape.micro_batches + name.micro_batch;
  if (name.kind == Kind::Activations) return forwards_[index];
  return name.kind == Kind::Gradients ? backwards_[index] : weights_[index];
}

void Places::give(const std::vector<HeldTensor>& tensors, const MessageName& name, int to_stage) {
  const int to = table_.shape.rank_of(to_stage);
  if (to != rank_) return messages_.send(tensors, to, name, taken_at(name, to_stage));
  std::vector<HeldTensor> leaves;
  for (const auto& [tensor, cut] : tensors)
    leaves.push_back(
        {tensor.defined() ? tensor.detach().requires_grad_(tensor.requires_grad()) : tensor, cut});
  in_hand_[{name.kind, name.stage, name.micro_batch, to_stage}].push_back(std::move(leaves));
}

std::vector<HeldTensor> Places::take(const MessageName& name, int at_stage) {
  const int from = table_.shape.rank_of(name.stage);
  if (from != rank_) return messages_.receive(from, name, made_at(name));
  const auto found = in_hand_.find({name.kind, name.stage, name.micro_batch, at_stage});
  require(found != in_hand_.end(), ErrorKind::Internal, "pipeline",
          "stage " + std::to_string(at_stage) + " takes what stage " + std::to_string(name.stage) +
              " has not made");
  std::vector<HeldTensor> tensors = std::move(found->second.front());
  found->second.erase(found->second.begin());
  if (found->second.empty()) in_hand_.erase(found);
  return tensors;
}

void Places::abandon() {
  messages_.abandon();
  in_hand_.clear();
}

}  // namespace zero::detail

#include "mesh/group_parts.h"

#include <string>
#include <utility>

#include "mesh/collective.h"
#include "mesh/ordered_sum.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// Outputs of a sum, flattened, and its input with `rows` times their elements.
void check_parts(const CollectiveCheck& check, std::vector<ReducePart>& outs, const at::Tensor& in,
                 int rows) {
  check.tensor(in, "in");
  int64_t numel = 0;
  for (ReducePart& part : outs) {
    check.tensor(part.out, "out");
    if (part.out.scalar_type() != at::kFloat) check.refuse("out must be fp32");
    numel += part.out.numel();
    part.out = flat_view(part.out);
    if (!part.own.defined()) continue;
    check.tensor(part.own, "own");
    check.numel(part.own, "own", part.out.numel(), "out");
    if (part.own.scalar_type() != in.scalar_type()) check.refuse("own must be of in's type");
    part.own = flat_view(part.own);
  }
  if (in.scalar_type() != at::kFloat && in.scalar_type() != at::kBFloat16 && in.scalar_type() != at::kHalf)
    check.refuse(std::string("in is ") + c10::toString(in.scalar_type()) + ", expected fp32, bf16 or fp16");
  check.numel(in, "in", numel * rows, "out for each of " + std::to_string(rows) + " rows");
}

}  // namespace

Work reduce_scatter(const Group& group, std::vector<ReducePart> outs, at::Tensor in, std::string_view what) {
  at::NoGradGuard no_grad;
  const std::shared_ptr<GroupState>& state = GroupAccess::state_of(group);
  const CollectiveCheck check{*state, Operation::ReduceScatter, what};
  check_parts(check, outs, in, state->size());
  Issued issued = state->issue(Operation::ReduceScatter, what, in.numel(), traffic_of(in));
  if (in.numel() == 0) return {};
  in = flat_view(in);
  if (state->size() == 1) {
    ordered_sums(outs, {in}, 0);
    return {};
  }
  int tag = transfer_tag(issued, in.scalar_type(), 0);
  if (state->channel->has_reduce_scatter())
    return start_transfer(state, issued,
                          [&](auto& channel) { return channel.reduce_scatter(outs, in, tag); });
  at::Tensor received = at::empty_like(in);
  // The raw pointer is safe: the Work that runs this owns the group.
  return start_transfer(
      state, issued, [&](auto& channel) { return channel.exchange(received, in, tag); },
      [=, members = state.get()] {
        ordered_sums(outs, received_parts(received, in, *members), members->rank);
      });
}

Work all_reduce(const Group& group, std::vector<ReducePart> outs, at::Tensor in, std::string_view what) {
  at::NoGradGuard no_grad;
  const std::shared_ptr<GroupState>& state = GroupAccess::state_of(group);
  const CollectiveCheck check{*state, Operation::AllReduce, what};
  if (!group.shares_memory()) check.refuse("its ranks do not share memory");
  check_parts(check, outs, in, 1);
  Issued issued = state->issue(Operation::AllReduce, what, in.numel(), traffic_of(in, 2));
  if (in.numel() == 0) return {};
  int tag = transfer_tag(issued, in.scalar_type(), 0);
  return start_transfer(state, issued,
                        [&](auto& channel) { return channel.all_reduce(outs, flat_view(in), tag); });
}

at::Tensor input_tensor(const Group& group, int64_t numel, at::ScalarType dtype) {
  GroupState& state = *GroupAccess::state_of(group);
  if (group.shares_memory() && numel > 0) return state.channel->empty(numel, dtype);
  return at::empty({numel}, at::TensorOptions(dtype).device(state.device));
}

at::Tensor common_tensor(const Group& group, int64_t numel, at::ScalarType dtype, std::string_view what) {
  GroupState& state = *GroupAccess::state_of(group);
  const std::string place = "memory for " + std::string(what) + " in group " + state.name;
  require(group.shares_memory(), ErrorKind::Usage, place, "its ranks do not share memory");
  require(numel > 0, ErrorKind::Usage, place, "expected at least one element");
  Issued issued = state.issue(Operation::Broadcast, what, 0, {});
  at::Tensor memory;
  state.attempt(issued, [&] {
    memory = state.channel->together(numel, dtype, transfer_tag(issued, dtype, 2), state.timeout);
  });
  return memory;
}

}  // namespace zero::detail

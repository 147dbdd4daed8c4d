// The collectives: checks, then the transport, then sums in rank order.

#include <torch/types.h>

#include "mesh/collective.h"
#include "mesh/group_parts.h"
#include "mesh/group_state.h"
#include "mesh/ordered_sum.h"
#include "zero/error.h"
#include "zero/mesh.h"

namespace zero {

using detail::CollectiveCheck;
using detail::flat_view;
using detail::GroupState;
using detail::Issued;
using detail::start_transfer;
using detail::traffic_of;

namespace {

// All-reduces up to this size gather everything; larger ones reduce-scatter and gather, which moves less.
constexpr int64_t kSmallReduce = 64 * 1024;

}  // namespace

std::string_view to_string(Operation operation) {
  switch (operation) {
    case Operation::AllGather:
      return "all_gather";
    case Operation::ReduceScatter:
      return "reduce_scatter";
    case Operation::AllReduce:
      return "all_reduce";
    case Operation::Broadcast:
      return "broadcast";
    case Operation::Send:
      return "send";
    case Operation::Receive:
      return "receive";
    case Operation::Barrier:
      return "barrier";
  }
  return "unknown";
}

void Work::wait() {
  if (!state_) return;
  auto state = std::move(state_);
  state->wait();
}

void Work::wait_output() {
  if (state_) state_->wait_output();
}

bool Group::shares_memory() const { return state_->channel && state_->channel->shares_memory(); }

std::vector<int> Group::memories() const { return state_->memories; }

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size(); }
const std::string& Group::name() const { return state_->name; }
std::span<const int> Group::members() const { return state_->members; }

Traffic Group::traffic(Operation operation) const {
  auto entry = state_->traffic.find(operation);
  return entry == state_->traffic.end() ? Traffic{} : entry->second;
}

Traffic Group::traffic() const {
  Traffic sum;
  for (const auto& [operation, traffic] : state_->traffic) {
    sum.calls += traffic.calls;
    sum.elements += traffic.elements;
    sum.bytes += traffic.bytes;
  }
  return sum;
}

int64_t Group::network_bytes() const { return state_->channel ? state_->channel->network_bytes() : 0; }

Work Group::all_gather(at::Tensor out, at::Tensor in, std::string_view what) const {
  at::NoGradGuard no_grad;
  CollectiveCheck check{*state_, Operation::AllGather, what};
  check.tensor(out, "out");
  check.tensor(in, "in");
  check.same_dtype(out, in);
  check.numel(out, "out", in.numel() * size(), "in from each of " + std::to_string(size()) + " ranks");
  Issued issued = state_->issue(Operation::AllGather, what, out.numel(), traffic_of(out));
  if (in.numel() == 0) return {};
  if (size() == 1) {
    if (out.data_ptr() != in.data_ptr()) flat_view(out).copy_(flat_view(in));
    return {};
  }
  int tag = detail::transfer_tag(issued, in.scalar_type(), 0);
  return start_transfer(
      state_, issued, [&](auto& channel) { return channel.all_gather(flat_view(out), flat_view(in), tag); });
}

Work Group::reduce_scatter(at::Tensor out, at::Tensor in, bool accumulate, std::string_view what) const {
  return detail::reduce_scatter(*this, {{std::move(out), accumulate}}, std::move(in), what);
}

namespace {

Work reduce_small(const std::shared_ptr<GroupState>& group, const Issued& issued, const at::Tensor& tensor,
                  Group::Reduce op) {
  at::Tensor gathered = at::empty({tensor.numel() * group->size()}, tensor.options());
  int tag = detail::transfer_tag(issued, tensor.scalar_type(), 0);
  return start_transfer(
      group, issued, [&](auto& channel) { return channel.all_gather(gathered, tensor, tag); },
      [=, size = group->size()] {
        auto parts = detail::equal_parts(gathered, size);
        if (op == Group::Reduce::Sum)
          detail::ordered_sum(tensor, parts, false);
        else
          detail::ordered_max(tensor, parts);
      });
}

// Every rank reduces its part in rank order, then the parts are gathered: the same bits as reduce_small.
Work reduce_large(const std::shared_ptr<GroupState>& group, const Issued& issued, const at::Tensor& tensor,
                  Group::Reduce op) {
  int64_t part = (tensor.numel() + group->size() - 1) / group->size();
  at::Tensor padded = tensor;  // needs no copy where it divides evenly
  if (part * group->size() != tensor.numel()) {
    padded = at::zeros({part * group->size()}, tensor.options());
    padded.narrow(0, 0, tensor.numel()).copy_(tensor);
  }
  at::Tensor received = at::empty_like(padded);
  int tag = detail::transfer_tag(issued, tensor.scalar_type(), 0);
  int gather_tag = detail::transfer_tag(issued, tensor.scalar_type(), 1);
  // The raw pointer is safe: the Work that runs this owns the group.
  auto finish = [=, state = group.get()] {
    at::NoGradGuard no_grad;
    auto parts = detail::received_parts(received, padded, *state);
    // The part of `received` that the exchange leaves unwritten; it must not be one of the inputs.
    at::Tensor mine = detail::equal_parts(received, state->size())[state->rank];
    if (op == Group::Reduce::Sum)
      detail::ordered_sum(mine, parts, false);
    else
      detail::ordered_max(mine, parts);
    auto gather =
        state->begin(issued, [&](auto& channel) { return channel.all_gather(padded, mine, gather_tag); });
    state->complete(issued, *gather);
    if (!padded.is_same(tensor)) tensor.copy_(padded.narrow(0, 0, tensor.numel()));
  };
  return start_transfer(
      group, issued, [&](auto& channel) { return channel.exchange(received, padded, tag); }, finish);
}

}  // namespace

Work Group::all_reduce(at::Tensor tensor, Reduce op, std::string_view what) const {
  at::NoGradGuard no_grad;
  CollectiveCheck check{*state_, Operation::AllReduce, what};
  check.tensor(tensor, "the tensor");
  const at::ScalarType type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16 && type != at::kHalf)
    check.refuse(std::string("the tensor is ") + c10::toString(type) + ", expected fp32, fp64, bf16 or fp16");
  Issued issued = state_->issue(Operation::AllReduce, what, tensor.numel(), traffic_of(tensor, 2));
  if (size() == 1 || tensor.numel() == 0) return {};
  tensor = flat_view(tensor);
  return tensor.numel() <= kSmallReduce ? reduce_small(state_, issued, tensor, op)
                                        : reduce_large(state_, issued, tensor, op);
}

Work Group::broadcast(at::Tensor tensor, int root, std::string_view what) const {
  at::NoGradGuard no_grad;
  CollectiveCheck check{*state_, Operation::Broadcast, what};
  check.tensor(tensor, "the tensor");
  check.member(root, "root");
  Issued issued = state_->issue(Operation::Broadcast, what, tensor.numel(), traffic_of(tensor));
  if (size() == 1 || tensor.numel() == 0) return {};
  int tag = detail::transfer_tag(issued, tensor.scalar_type(), root);
  return start_transfer(state_, issued,
                        [&](auto& channel) { return channel.broadcast(flat_view(tensor), root, tag); });
}

namespace {

// Both sides of a message agree on this, whatever each calls it.
int message_tag(const at::Tensor& tensor, int tag) {
  return detail::transfer_tag({0, "message", "", tensor.numel()}, tensor.scalar_type(), tag);
}

}  // namespace

Work Group::send(at::Tensor tensor, int to, int tag, std::string_view what) const {
  at::NoGradGuard no_grad;
  CollectiveCheck check{*state_, Operation::Send, what};
  check.tensor(tensor, "the tensor");
  check.member(to, "the receiver");
  if (to == rank()) check.refuse("a rank cannot send to itself");
  Issued issued = state_->issue(Operation::Send, what, tensor.numel(), traffic_of(tensor));
  if (tensor.numel() == 0) return {};
  return start_transfer(state_, issued, [&](auto& channel) {
    return channel.send(flat_view(tensor), to, message_tag(tensor, tag));
  });
}

Work Group::receive(at::Tensor tensor, int from, int tag, std::string_view what) const {
  at::NoGradGuard no_grad;
  CollectiveCheck check{*state_, Operation::Receive, what};
  check.tensor(tensor, "the tensor");
  check.member(from, "the sender");
  if (from == rank()) check.refuse("a rank cannot receive from itself");
  Issued issued = state_->issue(Operation::Receive, what, tensor.numel(), traffic_of(tensor));
  if (tensor.numel() == 0) return {};
  return start_transfer(state_, issued, [&](auto& channel) {
    return channel.receive(flat_view(tensor), from, message_tag(tensor, tag));
  });
}

void Group::barrier(std::string_view what) const {
  Issued issued = state_->issue(Operation::Barrier, what, 0, {});
  if (size() == 1) return;
  at::NoGradGuard no_grad;
  auto options = at::TensorOptions().dtype(at::kByte).device(state_->device);
  at::Tensor mine = at::zeros({1}, options);
  at::Tensor all = at::empty({size()}, options);
  int tag = detail::transfer_tag(issued, at::kByte, 0);
  start_transfer(state_, issued, [&](auto& channel) { return channel.all_gather(all, mine, tag); }).wait();
  // On a device wait() only orders the stream; reading the bytes blocks this thread.
  if (!state_->device.is_cpu()) all.cpu();
}

}  // namespace zero

#include "virtual/transport.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "compute/wait_place.h"
#include "virtual/network.h"
#include "virtual/operator_call.h"
#include "virtual/runtime.h"
#include "virtual/shapes.h"

namespace zero::virtual_device {
namespace {

using detail::Channel;
using detail::Transfer;

// Copies of bytes beside LibTorch's dispatcher modes, whoever calls.
struct HostWork {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_modes{c10::DispatchKeySet(c10::DispatchKey::Fake)};
};

at::Tensor host_like(const at::Tensor& tensor) {
  return at::empty({tensor.numel()}, at::TensorOptions(tensor.scalar_type()));
}

at::Tensor on_host(const at::Tensor& tensor) {
  OperatorCall call;
  at::Tensor copy = host_like(tensor);
  copy.copy_(call.to_cpu(tensor, false, true));
  return copy;
}

/// One collective of this rank, on its way.
struct Operation {
  Stamp at;
  Moment moment;  // after it on its stream; its time once it is finished
  Picoseconds ready = 0, takes = 0;
  double bytes = 0;
  at::Tensor host_in, host_out, out;  // out: the device's, undefined where nothing comes
  at::Tensor own_ready, all_ready;    // int64 picoseconds on the host
  std::unique_ptr<Transfer> clocks, data;
  bool uses_link = false, is_finished = false;
  bool has_values = true;  // false: of a device with shapes only; no bytes move
  bool receives_parts = false;

  void abort() noexcept {
    for (Transfer* transfer : {clocks.get(), data.get()})
      if (transfer != nullptr) transfer->abort();
  }
};
using Operations = std::deque<std::shared_ptr<Operation>>;

class VirtualChannel;

class VirtualTransfer final : public Transfer {
 public:
  VirtualTransfer(VirtualChannel& channel, Operations until) : channel_(channel), until_(std::move(until)) {}
  void wait(std::chrono::milliseconds timeout) override;
  void abort() noexcept override {
    for (const auto& operation : until_) operation->abort();
  }

 private:
  VirtualChannel& channel_;
  Operations until_;  // it and what was under way before it
};

class VirtualChannel final : public Channel {
 public:
  VirtualChannel(std::unique_ptr<Channel> inner, c10::Device device, int rank, Network network,
                 std::shared_ptr<RankLink> link)
      : inner_(std::move(inner)),
        device_(device),
        rank_(rank),
        ranks_(network.ranks()),
        network_(std::move(network)),
        link_(std::move(link)) {
    const c10::impl::VirtualGuardImpl guard(kVirtual);
    clock_ = clock_of(guard.getStreamFromGlobalPool(device));
  }

  Started all_gather(at::Tensor out, at::Tensor in, int tag) override {
    return start("all_gather", in, out, network_.parts_time(bytes_of(in)), tag,
                 [&](Operation& of) { return inner_->all_gather(of.host_out, of.host_in, tag); });
  }
  Started exchange(at::Tensor out, at::Tensor in, int tag) override {
    return start("reduce_scatter", in, out, network_.parts_time(bytes_of(in) / ranks_), tag,
                 [&](Operation& of) { return inner_->exchange(of.host_out, of.host_in, tag); });
  }
  Started broadcast(at::Tensor tensor, int root, int tag) override {
    const bool sends = root == rank_;
    return start("broadcast", sends ? tensor : at::Tensor(), sends ? at::Tensor() : tensor,
                 network_.broadcast_time(bytes_of(tensor)), tag, [&](Operation& of) {
                   return inner_->broadcast(sends ? of.host_in : of.host_out, root, tag);
                 });
  }
  Started send(at::Tensor tensor, int to, int tag) override {
    return start(
        "send", tensor, {}, network_.message_time(bytes_of(tensor), rank_, to), tag,
        [&](Operation& of) { return inner_->send(of.host_in, to, tag); },
        [&](Operation& of, int clock_tag) { return inner_->send(of.own_ready, to, clock_tag); });
  }
  // A sender does not wait for its receiver; a receiver begins when both are ready.
  Started receive(at::Tensor tensor, int from, int tag) override {
    return start(
        "receive", {}, tensor, network_.message_time(bytes_of(tensor), from, rank_), tag,
        [&](Operation& of) { return inner_->receive(of.host_out, from, tag); },
        [&](Operation& of, int clock_tag) {
          return inner_->receive(of.all_ready.narrow(0, 0, 1), from, clock_tag);
        });
  }

  /// Takes the results of all up to the last of `until`, in order, and makes the current stream wait for it.
  void finish(Operations& until, std::chrono::milliseconds timeout) {
    for (const auto& operation : until)
      if (!operation->is_finished) finish(*operation, timeout);
    std::erase_if(under_way_, [](const auto& operation) { return operation->is_finished; });
    if (machine().leaves_out_wait(detail::wait_place())) return;
    machine().wait(current_clock(device_.index()), until.back()->moment);
  }

 private:
  using Begin = std::function<std::unique_ptr<Transfer>(Operation&)>;
  using BeginClocks = std::function<std::unique_ptr<Transfer>(Operation&, int tag)>;

  static double bytes_of(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

  Started start(const char* name, const at::Tensor& in, const at::Tensor& out, Picoseconds takes, int tag,
                const Begin& begin, const BeginClocks& begin_clocks = {}) {
    auto operation = std::make_shared<Operation>();
    operation->takes = takes;
    operation->out = out;
    const HostWork quiet;
    enqueue(*operation, name, in, out);
    // A CPU moves bytes itself, in its own time; and what is only received is in nobody's way.
    operation->uses_link = !machine().description().host_computes && (in.defined() || !begin_clocks);
    if (operation->uses_link) operation->ready = link_->begin(operation->ready, takes);
    operation->own_ready = at::empty({1}, at::kLong).fill_(operation->ready);
    operation->all_ready = at::empty({ranks_}, at::kLong).fill_(operation->ready);
    if (operation->has_values) operation->data = begin(*operation);
    const int clock_tag = tag ^ 0x2a5a5a5a;
    operation->clocks = begin_clocks
                            ? begin_clocks(*operation, clock_tag)
                            : inner_->all_gather(operation->all_ready, operation->own_ready, clock_tag);
    under_way_.push_back(operation);
    return std::make_unique<VirtualTransfer>(*this, under_way_);
  }

  // What the device is told: after the current stream, on the collectives' own.
  void enqueue(Operation& operation, const char* name, const at::Tensor& in, const at::Tensor& out) {
    Machine& owner = machine();
    const std::lock_guard lock(owner.mutex());
    if (!owner.leaves_out_wait("start of a collective"))
      owner.wait(clock_, owner.record(current_clock(device_.index())));
    this_thread().last_work = name;
    operation.at = owner.launch(clock_, name);
    operation.receives_parts = in.defined() && out.defined();
    operation.has_values =
        !owner.has_shapes_only() || (in.defined() && has_values(in) && (!out.defined() || takes_values(out)));
    if (in.defined()) {
      const Touch read = touch_of(in);
      owner.require_written(read, operation.at);
      owner.note(read, false, operation.at);
      if (operation.has_values) operation.host_in = on_host(in);
      operation.bytes = bytes_of(in);
    }
    if (out.defined()) {
      const Touch written = touch_of(out);
      owner.note(written, true, operation.at);
      owner.note_written(written);
      if (operation.has_values) operation.host_out = host_like(out);
      operation.bytes = bytes_of(out);
    }
    operation.ready = owner.ready_time(clock_);
    operation.moment = owner.record(clock_);
    owner.raise_faults(name);
  }

  // Its memory may be used again only after this stream, whoever lets go of it.
  Touch touch_of(const at::Tensor& tensor) const {
    c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    Block* block = block_of(storage);
    if (block != nullptr) machine().record_stream(*block, clock_);
    return {block, region_of(tensor), &tensor};
  }

  void finish(Operation& operation, std::chrono::milliseconds timeout) {
    operation.clocks->wait(timeout);
    if (operation.data != nullptr) operation.data->wait(timeout);
    const HostWork quiet;
    Machine& owner = machine();
    const std::lock_guard lock(owner.mutex());
    const auto* const ready = operation.all_ready.const_data_ptr<int64_t>();
    Picoseconds begin = std::max(operation.ready, last_end_);
    for (int rank = 0; rank < ranks_; ++rank) begin = std::max(begin, ready[rank]);
    if (owner.description().host_computes) begin = std::max(begin, owner.host_time());
    last_end_ = begin + operation.takes;
    if (operation.uses_link) link_->ended(last_end_);
    operation.moment.time = std::max(operation.moment.time, last_end_);
    owner.finish(operation.at, begin, last_end_, operation.bytes);
    // What a broadcast's receiver has is what was sent, as far as anybody knows.
    if (owner.has_shapes_only() && operation.out.defined() && operation.receives_parts)
      note_contents(operation.out, operation.has_values);
    if (operation.host_out.defined()) {
      OperatorCall call;
      call.to_cpu(operation.out, true, false).view({-1}).copy_(operation.host_out);
    }
    operation.is_finished = true;
  }

  std::unique_ptr<Channel> inner_;
  const c10::Device device_;
  const int rank_, ranks_;
  const Network network_;
  const std::shared_ptr<RankLink> link_;  // of all groups of this rank
  int clock_ = 0;                         // of the stream of its collectives
  Operations under_way_;
  Picoseconds last_end_ = 0;
};

void VirtualTransfer::wait(std::chrono::milliseconds timeout) { channel_.finish(until_, timeout); }

class VirtualTransport final : public detail::Transport {
 public:
  VirtualTransport(c10::Device device, std::shared_ptr<detail::Transport> inner)
      : device_(device), inner_(std::move(inner)) {}

  std::optional<std::vector<int>> imagined_hosts(int ranks) const override {
    return inner_->imagined_hosts(ranks);
  }

  std::unique_ptr<Channel> connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                   const std::vector<int>& hosts, const std::string& name) override {
    // The first group is all ranks.
    if (ranks_of_host_.empty())
      for (const int host : hosts) ++ranks_of_host_[host];
    std::vector<int> counts;
    counts.reserve(hosts.size());
    for (const int host : hosts) counts.push_back(ranks_of_host_[host]);
    return std::make_unique<VirtualChannel>(inner_->connect(std::move(store), rank, hosts, name), device_,
                                            rank, Network(machine().description(), hosts, counts), link_);
  }

 private:
  const c10::Device device_;
  const std::shared_ptr<detail::Transport> inner_;
  const std::shared_ptr<RankLink> link_ = std::make_shared<RankLink>();
  std::map<int, int> ranks_of_host_;
};

}  // namespace

std::shared_ptr<detail::Transport> make_virtual_transport(const detail::TransportOptions& options) {
  return make_virtual_transport_over(
      detail::make_transport("auto", {options.interface_address, at::kCPU, options.timeout}), options);
}

std::shared_ptr<detail::Transport> make_virtual_transport_over(std::shared_ptr<detail::Transport> inner,
                                                               const detail::TransportOptions& options) {
  TORCH_CHECK(options.device.type() == kVirtual && options.device.has_index(),
              "the virtual transport moves tensors of virtual devices, not of ", options.device);
  return std::make_shared<VirtualTransport>(options.device, std::move(inner));
}

}  // namespace zero::virtual_device

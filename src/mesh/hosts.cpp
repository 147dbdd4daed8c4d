// Shared memory inside a host, a network transport across hosts.

#include <algorithm>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mesh/transport.h"

namespace zero::detail {
namespace {

/// Several transfers as one.
class Bundle final : public Transfer {
 public:
  void add(Channel::Started transfer, int peer) { parts_.push_back({std::move(transfer), peer}); }

  void wait(std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (auto& [transfer, peer] : parts_) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      try {
        transfer->wait(std::max(left, std::chrono::milliseconds(1)));
      } catch (const TransferError& error) {  // the part knows its own ranks only
        throw TransferError(error.what(), {peer}, error.timed_out, error.aborted);
      }
    }
  }

  void abort() noexcept override {
    for (auto& part : parts_) part.transfer->abort();
  }

 private:
  struct Part {
    Channel::Started transfer;
    int peer;
  };
  std::vector<Part> parts_;
};

/// Members of several hosts, some on the same: every pair talks by the better of two ways.
class MixedChannel final : public Channel {
 public:
  MixedChannel(std::unique_ptr<Channel> inside, std::unique_ptr<Channel> across, int rank,
               const std::vector<int>& hosts)
      : inside_(std::move(inside)), across_(std::move(across)), rank_(rank) {
    int neighbours = 0;
    for (int host : hosts) place_inside_.push_back(host == hosts[rank] ? neighbours++ : -1);
  }

  Started all_gather(at::Tensor out, at::Tensor in, int tag) override {
    auto bundle = std::make_unique<Bundle>();
    at::Tensor own = part(out, rank_);
    if (own.data_ptr() != in.data_ptr()) own.copy_(in);
    for (int peer : others()) bundle->add(receive(part(out, peer), peer, tag), peer);
    for (int peer : others()) bundle->add(send(in, peer, tag), peer);
    return bundle;
  }

  Started exchange(at::Tensor out, at::Tensor in, int tag) override {
    auto bundle = std::make_unique<Bundle>();
    for (int peer : others()) bundle->add(receive(part(out, peer), peer, tag), peer);
    for (int peer : others()) bundle->add(send(part(in, peer), peer, tag), peer);
    return bundle;
  }

  Started broadcast(at::Tensor tensor, int root, int tag) override {
    auto bundle = std::make_unique<Bundle>();
    if (rank_ != root) bundle->add(receive(tensor, root, tag), root);
    if (rank_ == root)
      for (int peer : others()) bundle->add(send(tensor, peer, tag), peer);
    return bundle;
  }

  Started send(at::Tensor tensor, int to, int tag) override {
    const int neighbour = place_inside_[to];
    return neighbour >= 0 ? inside_->send(std::move(tensor), neighbour, tag)
                          : across_->send(std::move(tensor), to, tag);
  }

  Started receive(at::Tensor tensor, int from, int tag) override {
    const int neighbour = place_inside_[from];
    return neighbour >= 0 ? inside_->receive(std::move(tensor), neighbour, tag)
                          : across_->receive(std::move(tensor), from, tag);
  }

  double worked_s() const override {
    return (inside_ ? inside_->worked_s() : 0) + (across_ ? across_->worked_s() : 0);
  }

 private:
  int ranks() const { return static_cast<int>(place_inside_.size()); }
  at::Tensor part(const at::Tensor& tensor, int rank) const {
    const int64_t numel = tensor.numel() / ranks();
    return tensor.narrow(0, rank * numel, numel);
  }
  std::vector<int> others() const {
    std::vector<int> result;
    for (int step = 1; step < ranks(); ++step) result.push_back((rank_ + step) % ranks());
    return result;
  }

  std::unique_ptr<Channel> inside_;  // null for a rank that is alone on its host
  std::unique_ptr<Channel> across_;
  int rank_;
  std::vector<int> place_inside_;  // of every member among those of this host, -1 for others
};

class HostsTransport final : public Transport {
 public:
  HostsTransport(MakeTransport inside, MakeTransport across)
      : make_inside_(std::move(inside)), make_across_(std::move(across)) {}

  std::unique_ptr<Channel> connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                   const std::vector<int>& hosts, const std::string& name) override {
    const int here = hosts[rank];
    const auto neighbours = std::count(hosts.begin(), hosts.end(), here);
    std::unique_ptr<Channel> inside_channel, across_channel;
    if (neighbours > 1) {
      const auto place = static_cast<int>(std::count(hosts.begin(), hosts.begin() + rank, here));
      if (!inside_) inside_ = make_inside_();
      inside_channel =
          inside_->connect(c10::make_intrusive<c10d::PrefixStore>("host" + std::to_string(here), store),
                           place, std::vector<int>(neighbours, here), name);
    }
    if (neighbours == std::ssize(hosts)) return inside_channel;
    if (!across_) across_ = make_across_();
    across_channel =
        across_->connect(c10::make_intrusive<c10d::PrefixStore>("across", store), rank, hosts, name);
    if (std::set<int>(hosts.begin(), hosts.end()).size() == hosts.size()) return across_channel;
    return std::make_unique<MixedChannel>(std::move(inside_channel), std::move(across_channel), rank, hosts);
  }

  std::vector<int> memories(const std::vector<int>& hosts) const override { return hosts; }

 private:
  MakeTransport make_inside_, make_across_;
  std::shared_ptr<Transport> inside_, across_;
};

}  // namespace

std::shared_ptr<Transport> make_hosts_transport(MakeTransport inside, MakeTransport across) {
  return std::make_shared<HostsTransport>(std::move(inside), std::move(across));
}

}  // namespace zero::detail

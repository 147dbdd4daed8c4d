// Shared memory inside a host, a network transport across hosts.

#include <algorithm>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mesh/hosts_channel.h"
#include "mesh/transport.h"

namespace zero::detail {
namespace {

class HostsTransport final : public Transport {
 public:
  HostsTransport(MakeTransport inside, MakeTransport across, Communication communication)
      : make_inside_(std::move(inside)), make_across_(std::move(across)), communication_(communication) {}

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
    return make_hosts_channel(std::move(inside_channel), std::move(across_channel), rank, hosts,
                              communication_);
  }

  std::vector<int> memories(const std::vector<int>& hosts) const override { return hosts; }

  bool has_fast_sums() const override { return true; }

 private:
  MakeTransport make_inside_, make_across_;
  Communication communication_;
  std::shared_ptr<Transport> inside_, across_;
};

}  // namespace

std::shared_ptr<Transport> make_hosts_transport(MakeTransport inside, MakeTransport across,
                                                Communication communication) {
  return std::make_shared<HostsTransport>(std::move(inside), std::move(across), communication);
}

}  // namespace zero::detail

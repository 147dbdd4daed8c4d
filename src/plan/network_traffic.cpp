#include "plan/network_traffic.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/host_routes.h"
#include "plan/traffic.h"
#include "zero/error.h"

namespace zero {
namespace {

/// Adds up what groups of ranks send, by host.
class Crossing {
 public:
  Crossing(const RankPlaces& places, std::vector<int> hosts)
      : hosts_(std::move(hosts)), communication_(places.communication) {
    traffic_.resize(static_cast<size_t>(*std::max_element(hosts_.begin(), hosts_.end())) + 1);
  }

  /// Groups of `size` ranks, `stride` apart.
  void set_groups(int size, int stride) {
    groups_.clear();
    sums_.clear();
    for (int first = 0; first < std::ssize(hosts_); ++first) {
      if (first / stride % size != 0) continue;
      Group group;
      for (int i = 0; i < size; ++i) group.hosts.push_back(hosts_[first + i * stride]);
      if (std::adjacent_find(group.hosts.begin(), group.hosts.end(), std::not_equal_to<>()) !=
          group.hosts.end())
        groups_.push_back(std::move(group));
    }
    gathers_ = per_host([](const detail::HostRoutes& routes) { return routes.of_all_gather(); });
  }

  /// All-gathers of parts of so many bytes.
  void gather(int64_t part_bytes, int64_t times) { add(gathers_, part_bytes, times); }

  /// Reduce-scatters of parts of so many elements.
  void reduce(int64_t part_numel, int64_t item_bytes, int64_t times) {
    auto known = sums_.find(item_bytes);
    if (known == sums_.end())
      known = sums_
                  .emplace(item_bytes, per_host([&](const detail::HostRoutes& routes) {
                             return routes.of_reduce_scatter(item_bytes, communication_);
                           }))
                  .first;
    add(known->second, part_numel, times);
  }

  std::vector<HostTraffic> take() { return std::move(traffic_); }

 private:
  struct Group {
    std::vector<int> hosts;  // of its members
  };

  template <class Count>
  std::vector<HostTraffic> per_host(Count count) const {
    std::vector<HostTraffic> bytes(traffic_.size());
    for (const Group& group : groups_) {
      const detail::HostRoutes routes(group.hosts);
      const std::vector<detail::CrossingBytes> of_group = count(routes);
      for (int host = 0; host < routes.hosts(); ++host) {
        HostTraffic& sum = bytes[group.hosts[routes.members(host).front()]];
        sum.sent_bytes += of_group[host].sent;
        sum.received_bytes += of_group[host].received;
      }
    }
    return bytes;
  }

  void add(const std::vector<HostTraffic>& each, int64_t amount, int64_t times) {
    const auto grow = [&](int64_t& sum, int64_t unit) {
      const auto once = checked_multiply(unit, amount);
      const auto all = once ? checked_multiply(*once, times) : std::nullopt;
      const auto grown = all ? checked_add(sum, *all) : std::nullopt;
      require(grown.has_value(), ErrorKind::Config, "plan",
              "what crosses the network in a step exceeds 2^63 bytes",
              "check the shapes and the accumulation steps");
      sum = *grown;
    };
    for (size_t host = 0; host < each.size(); ++host) {
      grow(traffic_[host].sent_bytes, each[host].sent_bytes);
      grow(traffic_[host].received_bytes, each[host].received_bytes);
    }
  }

  std::vector<int> hosts_;  // of every rank, numbered in the order of their first ranks
  Communication communication_;
  std::vector<Group> groups_;  // that are on several hosts
  std::vector<HostTraffic> gathers_;
  std::map<int64_t, std::vector<HostTraffic>> sums_;  // by bytes of an element
  std::vector<HostTraffic> traffic_;
};

std::vector<int> hosts_of(const RankPlaces& places) {
  std::vector<int> hosts;
  std::map<int, int> numbers;
  for (int rank = 0; rank < places.ranks; ++rank) {
    const int host = places.hosts.empty() ? rank / places.together : places.hosts[rank];
    hosts.push_back(numbers.emplace(host, static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

void add_shards(const Plan& plan, Crossing& crossing) {
  crossing.set_groups(plan.shard_ranks, 1);
  const int64_t reductions = plan.placements.gradient == Placement::Shard ? plan.accumulation_steps : 1;
  const std::vector<int64_t> gathers = gathers_of_step(plan);
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const UnitLayout& unit = plan.units[i];
    crossing.gather(unit.shard_numel * itemsize(unit.dtype), gathers[i]);
    if (unit.trainable) crossing.reduce(unit.shard_numel, itemsize(plan.communication_dtype), reductions);
  }
}

// Sums of shards, in pieces that are padded to parts: reduce-scattered, then gathered in fp32.
void add_replicas(const Plan& plan, Crossing& crossing) {
  constexpr int64_t kSumBytes = 4;
  crossing.set_groups(plan.replica_ranks, plan.shard_ranks);
  const int64_t ranks = plan.replica_ranks;
  const auto pieces = [&](int64_t numel, int64_t times) {
    const int64_t part = (numel + ranks - 1) / ranks;
    crossing.reduce(part, itemsize(plan.communication_dtype), times);
    crossing.gather(part * kSumBytes, times);
  };
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable) continue;
    pieces(plan.reduce_bucket_numel, unit.shard_numel / plan.reduce_bucket_numel);
    pieces(unit.shard_numel % plan.reduce_bucket_numel, 1);
  }
}

}  // namespace

void add_network_traffic(Plan& plan, const RankPlaces& places) {
  const std::vector<int> hosts = hosts_of(places);
  if (std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end()) return;
  Crossing crossing(places, hosts);
  if (plan.shard_ranks > 1) add_shards(plan, crossing);
  if (plan.replica_ranks > 1) add_replicas(plan, crossing);
  plan.network = crossing.take();
}

}  // namespace zero

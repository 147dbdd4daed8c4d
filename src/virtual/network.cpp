#include "virtual/network.h"

#include <algorithm>
#include <map>

#include "zero/error.h"

namespace zero::virtual_device {
namespace {

/// The part of a host's cards that `ranks` of its `all` ranks have.
double card_rate(const Link& card, double cards, int ranks, int all) {
  return card.bytes_per_s * cards * ranks / std::max(ranks, all);
}

}  // namespace

Network::Network(const DeviceDescription& description, std::span<const int> hosts,
                 std::span<const int> ranks_of_hosts)
    : hosts_(hosts.begin(), hosts.end()),
      ranks_of_hosts_(ranks_of_hosts.begin(), ranks_of_hosts.end()),
      within_host_(description.within_host),
      between_hosts_(description.between_hosts),
      cards_(static_cast<double>(description.network_cards)),
      ranks_(static_cast<int>(hosts.size())),
      ring_(within_host_) {
  require(hosts.size() == ranks_of_hosts.size(), ErrorKind::Internal, "network",
          "a host for each rank, and a count for each host");
  std::map<int, int> members;  // of each host
  for (const int host : hosts) ++members[host];
  if (members.size() <= 1) return;
  // A rank passes on no more than its own connection carries, however many cards it has.
  ring_.latency_ns = between_hosts_.latency_ns;
  for (size_t i = 0; i < hosts.size(); ++i)
    ring_.bytes_per_s =
        std::min(ring_.bytes_per_s, card_rate(between_hosts_, cards_, members[hosts[i]], ranks_of_hosts[i]));
}

Picoseconds Network::broadcast_time(double bytes) const {
  return (ranks_ - 1) * ring_.latency_ns * 1000 + ring_.time_of(bytes) - ring_.latency_ns * 1000;
}

Picoseconds Network::message_time(double bytes, int from, int to) const {
  if (hosts_[from] == hosts_[to]) return within_host_.time_of(bytes);
  Link link = between_hosts_;
  link.bytes_per_s = std::min(card_rate(between_hosts_, cards_, 1, ranks_of_hosts_[from]),
                              card_rate(between_hosts_, cards_, 1, ranks_of_hosts_[to]));
  return link.time_of(bytes);
}

}  // namespace zero::virtual_device

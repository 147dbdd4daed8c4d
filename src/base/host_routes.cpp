#include "base/host_routes.h"

#include <map>

namespace zero::detail {
namespace {

constexpr int64_t kSumBytes = 4;

}  // namespace

HostRoutes::HostRoutes(std::span<const int> hosts) {
  std::map<int, int> numbers;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    const int host = numbers.emplace(hosts[rank], static_cast<int>(numbers.size())).first->second;
    if (host == static_cast<int>(members_.size())) members_.emplace_back();
    if (rank == 0 || host != host_of_.back()) runs_.emplace_back();
    place_of_.push_back(static_cast<int>(members_[host].size()));
    host_of_.push_back(host);
    members_[host].push_back(rank);
    runs_.back().push_back(rank);
  }
}

int HostRoutes::receiver(int rank, int host) const {
  return members_[host][place_of_[rank] % members_[host].size()];
}

// On the owner's host the owner; elsewhere its ranks share the owners evenly.
int HostRoutes::adder(int owner, int host) const {
  if (host == host_of_[owner]) return owner;
  return members_[host][static_cast<size_t>(owner) * members_[host].size() / host_of_.size()];
}

// Of an element.
int64_t HostRoutes::cost_of_rows(int owner, int64_t item_bytes) const {
  return item_bytes * static_cast<int64_t>(host_of_.size() - members_[host_of_[owner]].size());
}

int64_t HostRoutes::cost_of_chain(int owner, int64_t item_bytes) const {
  const auto sums = static_cast<int64_t>(runs_.size()) - 2;  // between runs, but the first run's
  const bool returns = host_of_[runs_.back().front()] != host_of_[owner];
  return (runs_.front().size() == 1 ? item_bytes : kSumBytes) + (sums + (returns ? 1 : 0)) * kSumBytes;
}

SumRoute HostRoutes::sum_route(int owner, int64_t item_bytes, Communication communication) const {
  SumRoute route;
  if (communication == Communication::fast) {
    for (int host = 0; host < hosts(); ++host) route.steps.push_back({members_[host], adder(owner, host)});
    return route;
  }
  if (runs_.size() > 1 && cost_of_chain(owner, item_bytes) < cost_of_rows(owner, item_bytes)) {
    route.is_running = true;
    for (const std::vector<int>& run : runs_)
      route.steps.push_back({run, adder(owner, host_of_[run.front()])});
    return route;
  }
  for (int rank = 0; rank < ranks(); ++rank)
    route.steps.push_back({{rank}, host_of_[rank] == host_of_[owner] ? owner : rank});
  return route;
}

std::vector<CrossingBytes> HostRoutes::of_all_gather() const {
  std::vector<CrossingBytes> bytes(members_.size());
  const int64_t all = ranks();
  for (int host = 0; host < hosts(); ++host) {
    const auto own = static_cast<int64_t>(members_[host].size());
    bytes[host] = {.sent = own * (hosts() - 1), .received = all - own};
  }
  return bytes;
}

std::vector<CrossingBytes> HostRoutes::of_reduce_scatter(int64_t item_bytes,
                                                         Communication communication) const {
  std::vector<CrossingBytes> bytes(members_.size());
  for (int owner = 0; owner < ranks(); ++owner) {
    const SumRoute route = sum_route(owner, item_bytes, communication);
    for (size_t step = 0; step < route.steps.size(); ++step) {
      const bool goes_on = route.is_running && step + 1 < route.steps.size();
      const int from = host_of_[route.steps[step].adder];
      const int to = host_of_[goes_on ? route.steps[step + 1].adder : owner];
      if (from == to) continue;
      const int64_t item = route.passes_row(step) ? item_bytes : kSumBytes;
      bytes[from].sent += item;
      bytes[to].received += item;
    }
  }
  return bytes;
}

}  // namespace zero::detail

#pragma once
// Who sends what to whom where a group's ranks are on several hosts: each byte crosses the network once per
// host where that can be. Pure arithmetic, for the transport that does it and for the plan that counts it.

#include <cstdint>
#include <span>
#include <vector>

#include "zero/communication.h"

namespace zero::detail {

/// How one rank's part of a reduce-scatter comes about.
struct SumRoute {
  /// Ranks of one host, one of which, on the same host, adds up their rows in rank order in fp32. The row of
  /// one rank alone stays as it is.
  struct Step {
    std::vector<int> ranks;
    int adder = 0;
  };
  std::vector<Step> steps;  // in the order in which they are added
  // True: every step goes on from the sum of the one before, which gives the bits of one sum in rank order,
  // and the last one's is the owner's. False: the owner adds up the steps' sums, which begin anew.
  bool is_running = false;

  /// Whether what a step passes on is a row as it was given, in its own type, and not a sum in fp32.
  bool passes_row(size_t step) const { return steps[step].ranks.size() == 1 && (step == 0 || !is_running); }
};

/// Bytes that cross the network, of one host.
struct CrossingBytes {
  int64_t sent = 0, received = 0;
};

class HostRoutes {
 public:
  /// hosts[r]: any number that tells the host of member r.
  explicit HostRoutes(std::span<const int> hosts);

  int ranks() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(members_.size()); }
  /// Numbered in the order of their first members.
  int host_of(int rank) const { return host_of_[rank]; }
  const std::vector<int>& members(int host) const { return members_[host]; }
  /// Among the members of its host.
  int place_of(int rank) const { return place_of_[rank]; }

  /// All-gather and broadcast: the member of another host that takes what `rank` sends there, and passes it
  /// on.
  int receiver(int rank, int host) const;

  /// Reduce-scatter of rows of `item_bytes` an element: the sum for `owner`. exact: the bits of one sum in
  /// rank order, by the cheaper of two ways: rows as they are, from every rank to the owner; or a sum that
  /// goes from host to host. fast: every host's sum, then these.
  SumRoute sum_route(int owner, int64_t item_bytes, Communication communication) const;

  /// Of each host, where every rank gives, or is given, one byte or one element.
  std::vector<CrossingBytes> of_all_gather() const;
  std::vector<CrossingBytes> of_reduce_scatter(int64_t item_bytes, Communication communication) const;

 private:
  int adder(int owner, int host) const;
  int64_t cost_of_rows(int owner, int64_t item_bytes) const;
  int64_t cost_of_chain(int owner, int64_t item_bytes) const;

  std::vector<int> host_of_, place_of_;
  std::vector<std::vector<int>> members_;  // by host
  std::vector<std::vector<int>> runs_;     // neighbouring ranks of one host
};

}  // namespace zero::detail

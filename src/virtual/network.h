#pragma once
// What the network between ranks takes of simulated time. Plain arithmetic, the same on every rank of a
// group.
//
// All-gathers and reduce-scatters go around a ring (Patarasu and Yuan, Bandwidth optimal all-reduce, 2009):
// in each of ranks - 1 turns every rank passes one part to its neighbour, so a turn takes as long as the
// slowest connection. An all-reduce is one of each. A broadcast goes along the ring in small pieces.

#include <algorithm>
#include <span>
#include <vector>

#include "virtual/clock.h"
#include "virtual/description.h"

namespace zero::virtual_device {

/// The network as one group's ring sees it.
class Network {
 public:
  /// `hosts`: on which host each member is; `ranks_of_hosts`: how many ranks of the whole job are on each of
  /// those hosts. On a host's network cards all its ranks are taken to do the same at the same time, each in
  /// its own group: a ring that has p of a host's n ranks gets p / n of its cards. The ring of a group goes
  /// from host to host once.
  Network(const DeviceDescription& description, std::span<const int> hosts,
          std::span<const int> ranks_of_hosts);

  /// Parts of that size, one of each rank, to all ranks; or one for each rank from all.
  Picoseconds parts_time(double part_bytes) const { return (ranks_ - 1) * ring_.time_of(part_bytes); }
  /// From one rank to all.
  Picoseconds broadcast_time(double bytes) const;
  /// From one member to another.
  Picoseconds message_time(double bytes, int from, int to) const;

  int ranks() const { return ranks_; }
  /// The slowest connection of the ring.
  const Link& ring() const { return ring_; }

 private:
  std::vector<int> hosts_, ranks_of_hosts_;
  const Link within_host_, between_hosts_;
  const double cards_;
  const int ranks_;
  Link ring_;
};

/// When the network connection of one rank, which its groups share, will have done what it was given: in the
/// order of the program, as far as the program has waited. What it has not waited for yet counts as if the
/// other ranks had been ready. So times depend on no order in which processes run.
class RankLink {
 public:
  /// When it can begin something that is ready at that time and takes so long.
  Picoseconds begin(Picoseconds ready, Picoseconds takes) {
    const Picoseconds begin = std::max(ready, free_);
    free_ = begin + takes;
    return begin;
  }
  /// What was begun is known to have ended then.
  void ended(Picoseconds end) { free_ = std::max(free_, end); }

 private:
  Picoseconds free_ = 0;
};

}  // namespace zero::virtual_device

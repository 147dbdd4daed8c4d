#pragma once
// A described cluster of equal hosts with equal devices. Read from JSON (configs/clusters/, docs/cluster.md).

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "zero/dtype.h"

namespace zero {

/// A message of n bytes takes latency_s + n / bytes_per_s.
struct ClusterLink {
  double bytes_per_s = 0, latency_s = 0;
};

struct Cluster {
  std::string name, source;
  int hosts = 1, devices_per_host = 1;
  // Of one device.
  int64_t memory_bytes = 0;
  std::map<Dtype, double> flops_per_s = {};  // f32 at least
  double memory_bytes_per_s = 0;
  ClusterLink within_host;     // of one device to its neighbours
  ClusterLink between_hosts;   // of one network card
  int network_cards = 1;       // of a host
  bool shares_memory = false;  // ranks of a host are on CPU and keep one copy of the parameters
  // Cores that a host's devices take turns on, as local ranks do that are more than these; 0: a device has
  // its own. The rates above are those of all devices at a time.
  int cores_per_host = 0;
  // Of the figures above, what programs reach.
  double compute_efficiency = 1;  // of flops_per_s
  double network_efficiency = 1;  // of both links

  int devices() const { return hosts * devices_per_host; }
  double rate_of(Dtype dtype) const;  // f32's where there is no other
  /// How much faster a device computes while others of its host wait, at most: ranks a core, from 1 on.
  double devices_per_core() const {
    return cores_per_host == 0 ? 1 : std::max(1.0, static_cast<double>(devices_per_host) / cores_per_host);
  }
};

/// Throws Corrupt, naming the place and the value, for what is no JSON, has unknown members, or is out of
/// bounds.
Cluster cluster_from_text(std::string_view text, std::string_view place);
/// The same; throws Io for a file that cannot be read or has more than a megabyte.
Cluster read_cluster(const std::filesystem::path& path);

/// Some ranks that talk to each other.
struct RankGroup {
  int ranks = 1;
  int of_host = 1;  // of them, neighbours on one host; all: no network
};

/// Of `ranks` ranks that are `stride` apart, starting with a host's first.
RankGroup group_of(const Cluster& cluster, int ranks, int stride);

/// What one group has when all groups of the host talk at a time: inside a host a device's connection; across
/// hosts its ranks' equal part of the host's network cards, and no more than inside.
ClusterLink link_of(const Cluster& cluster, const RankGroup& group);

/// Seconds of ring collectives that move `bytes` in `calls` (an all-reduce counts twice, as a reduce-scatter
/// and an all-gather): each call takes ranks - 1 times latency + its part. 0 for one rank.
double ring_seconds(const Cluster& cluster, const RankGroup& group, double bytes, double calls);

}  // namespace zero

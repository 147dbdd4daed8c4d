#include "plan/cluster.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/files.h"
#include "base/strict_json.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr double kMostRate = 1e21;
constexpr int64_t kMostNanoseconds = 1'000'000'001;
constexpr int64_t kMostMemoryBytes = int64_t{1} << 50;
constexpr int64_t kMostDevices = 1 << 20;
constexpr double kNanosecond = 1e-9;
constexpr std::array<std::pair<std::string_view, Dtype>, 3> kClusterTypes{
    {{"f32", Dtype::f32}, {"bf16", Dtype::bf16}, {"f16", Dtype::f16}}};

void know_cluster_members(const JsonPlace& at, std::initializer_list<std::string_view> names) {
  at.require_object();
  for (const auto& [key, value] : at.value().items())
    require(std::find(names.begin(), names.end(), key) != names.end(), ErrorKind::Corrupt, at.place(),
            "unknown member \"" + key + "\"", "see docs/cluster.md for what a cluster has");
}

double cluster_rate(const JsonPlace& at) {
  const double value = at.value().is_number() ? at.value().get<double>() : 0;
  if (!(value > 0 && value <= kMostRate)) at.expected("a number above 0 and at most 1e21");
  return value;
}

double share_or_all(const JsonPlace& at) {
  if (at.is_null()) return 1;
  const double value = at.value().is_number() ? at.value().get<double>() : 0;
  if (!(value > 0 && value <= 1)) at.expected("a number above 0 and at most 1");
  return value;
}

int count_from_one(const JsonPlace& at, int64_t most) {
  const int64_t value = at.integer(most + 1);
  if (value < 1) at.expected("a whole number from 1 on");
  return static_cast<int>(value);
}

ClusterLink cluster_link(const JsonPlace& at) {
  know_cluster_members(at, {"bytes_per_s", "latency_ns"});
  return {cluster_rate(at["bytes_per_s"]),
          static_cast<double>(at["latency_ns"].integer(kMostNanoseconds)) * kNanosecond};
}

std::map<Dtype, double> cluster_rates(const JsonPlace& at) {
  know_cluster_members(at, {"f32", "bf16", "f16"});
  std::map<Dtype, double> found;
  for (const auto& [name, dtype] : kClusterTypes)
    if (const JsonPlace value = at[name]; !value.is_null() || dtype == Dtype::f32)
      found[dtype] = cluster_rate(value);
  return found;
}

}  // namespace

double Cluster::rate_of(Dtype dtype) const {
  const auto found = flops_per_s.find(dtype);
  return found != flops_per_s.end() ? found->second : flops_per_s.at(Dtype::f32);
}

Cluster cluster_from_text(std::string_view text, std::string_view place) {
  const nlohmann::json document = parse_json(text, place);
  const JsonPlace at(document, std::string(place));
  know_cluster_members(at, {"name", "source", "comment", "hosts", "devices_per_host", "memory_bytes",
                            "flops_per_s", "memory_bytes_per_s", "within_host", "between_hosts",
                            "network_cards", "shares_memory", "cores_per_host", "efficiency"});
  Cluster cluster;
  cluster.name = at["name"].string();
  cluster.source = at["source"].string();
  if (const JsonPlace comment = at["comment"]; !comment.is_null()) comment.string();
  cluster.hosts = count_from_one(at["hosts"], kMostDevices);
  cluster.devices_per_host = count_from_one(at["devices_per_host"], kMostDevices / cluster.hosts);
  cluster.memory_bytes = at["memory_bytes"].integer(kMostMemoryBytes);
  if (cluster.memory_bytes == 0) at["memory_bytes"].expected("a capacity above 0");
  cluster.flops_per_s = cluster_rates(at["flops_per_s"]);
  cluster.memory_bytes_per_s = cluster_rate(at["memory_bytes_per_s"]);
  cluster.within_host = cluster_link(at["within_host"]);
  cluster.between_hosts = cluster_link(at["between_hosts"]);
  if (const JsonPlace cards = at["network_cards"]; !cards.is_null())
    cluster.network_cards = count_from_one(cards, kMostDevices);
  cluster.shares_memory = at["shares_memory"].boolean_or(false);
  if (const JsonPlace cores = at["cores_per_host"]; !cores.is_null())
    cluster.cores_per_host = count_from_one(cores, kMostDevices);
  if (const JsonPlace efficiency = at["efficiency"]; !efficiency.is_null()) {
    know_cluster_members(efficiency, {"compute", "network"});
    cluster.compute_efficiency = share_or_all(efficiency["compute"]);
    cluster.network_efficiency = share_or_all(efficiency["network"]);
  }
  return cluster;
}

Cluster read_cluster(const std::filesystem::path& path) {
  const std::string text =
      read_small_file(path, "give the description of a cluster, as in configs/clusters/");
  return cluster_from_text(text, path.string());
}

RankGroup group_of(const Cluster& cluster, int ranks, int stride) {
  return {.ranks = ranks, .of_host = std::min(ranks, std::max(1, cluster.devices_per_host / stride))};
}

ClusterLink link_of(const Cluster& cluster, const RankGroup& group) {
  ClusterLink link = cluster.within_host;
  if (group.of_host < group.ranks) {
    const double cards =
        static_cast<double>(cluster.network_cards) * group.of_host / cluster.devices_per_host;
    link.bytes_per_s = std::min(link.bytes_per_s, cards * cluster.between_hosts.bytes_per_s);
    link.latency_s = cluster.between_hosts.latency_s;
  }
  link.bytes_per_s *= cluster.network_efficiency;
  return link;
}

double ring_seconds(const Cluster& cluster, const RankGroup& group, double bytes, double calls) {
  if (group.ranks <= 1) return 0;
  const ClusterLink link = link_of(cluster, group);
  return (group.ranks - 1) * (calls * link.latency_s + bytes / group.ranks / link.bytes_per_s);
}

}  // namespace zero

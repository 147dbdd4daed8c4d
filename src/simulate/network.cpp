#include "simulate/network.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/files.h"
#include "base/strict_json.h"
#include "zero/error.h"

namespace zero::simulate {
namespace {

constexpr int64_t kMostRanksOfHost = 1 << 16;
constexpr double kMostBytesPerSecond = 1e21;
constexpr int64_t kMostLatency = 1'000'000'001;

template <size_t n>
void know_only(const JsonPlace& at, const std::array<std::string_view, n>& names) {
  at.require_object();
  for (const auto& [key, value] : at.value().items())
    require(std::find(names.begin(), names.end(), key) != names.end(), ErrorKind::Corrupt, at.place(),
            "unknown member \"" + key + "\"", "see docs/simulate.md for what a network has");
}

virtual_device::Link link_at(const JsonPlace& at, const virtual_device::Link& unset) {
  if (at.is_null()) return unset;
  know_only(at, std::array<std::string_view, 2>{"bytes_per_s", "latency_ns"});
  const JsonPlace rate = at["bytes_per_s"];
  const double bytes_per_s = rate.value().is_number() ? rate.value().get<double>() : 0;
  if (!(bytes_per_s > 0 && bytes_per_s <= kMostBytesPerSecond))
    rate.expected("a number above 0 and at most 1e21");
  return {bytes_per_s, at["latency_ns"].integer(kMostLatency)};
}

}  // namespace

Network network_from_text(std::string_view text, std::string_view place, const Network& unset) {
  const nlohmann::json document = parse_json(text, place);
  const JsonPlace at(document, std::string(place));
  know_only(at, std::array<std::string_view, 6>{"ranks_per_host", "within_host", "between_hosts",
                                                "network_cards", "source", "comment"});
  Network network = unset;
  if (const JsonPlace ranks = at["ranks_per_host"]; !ranks.is_null()) {
    network.ranks_per_host = static_cast<int>(ranks.integer(kMostRanksOfHost + 1));
    if (network.ranks_per_host < 1) ranks.expected("a whole number from 1 on");
  }
  network.within_host = link_at(at["within_host"], unset.within_host);
  network.between_hosts = link_at(at["between_hosts"], unset.between_hosts);
  if (const JsonPlace cards = at["network_cards"]; !cards.is_null()) {
    network.network_cards = cards.integer(kMostRanksOfHost + 1);
    if (network.network_cards < 1) cards.expected("a whole number from 1 on");
  }
  return network;
}

Network read_network(const std::filesystem::path& path, const Network& unset) {
  const std::string text = read_small_file(path, "give the description of a network, as in docs/simulate.md");
  return network_from_text(text, path.string(), unset);
}

}  // namespace zero::simulate

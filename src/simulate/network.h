#pragma once
// The network between the ranks of a simulated job, in a file beside the device's description.

#include <filesystem>
#include <string_view>

#include "virtual/description.h"

namespace zero::simulate {

struct Network {
  int ranks_per_host = 8;
  virtual_device::Link within_host, between_hosts;
  int64_t network_cards = 1;  // of a host
};

/// {"ranks_per_host": 8, "within_host": {"bytes_per_s": ..., "latency_ns": ...}, "between_hosts": {...},
/// "network_cards": 8}: what is not there is `unset`'s. Throws Corrupt, naming the place and the value, for
/// what is no JSON or out of bounds.
Network network_from_text(std::string_view text, std::string_view place, const Network& unset);
/// The same; throws Io for a file that cannot be read or has more than a megabyte.
Network read_network(const std::filesystem::path& path, const Network& unset);

}  // namespace zero::simulate

#pragma once
// Whether programs of this host reach each other through its ports.

#include <string>

namespace zero::tool {

struct PortFinding {
  std::string found;   // "vm is 10.0.0.2 here, and is reached there; 29500 is free"
  std::string advice;  // what to change; "" where nothing is wrong
};

/// Listens on a port that the system chooses and connects to it by the host's own name, as ranks do; and,
/// unless a launcher has started this process, looks whether MASTER_PORT (29500) is free.
PortFinding look_at_ports();

/// The same for a host of that name and that port; -1: no port is looked at.
PortFinding look_at_ports(const std::string& host, int port);

}  // namespace zero::tool

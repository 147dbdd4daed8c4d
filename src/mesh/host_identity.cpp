#include "mesh/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace zero::detail {

std::string host_identity(const std::string& given) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  if (boot.empty()) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    boot = name;
  }
  struct stat processes {};  // containers see processes of their own only
  const ino_t space = stat("/proc/self/ns/pid", &processes) == 0 ? processes.st_ino : 0;
  const char* variable = std::getenv("ZERO_HOST");
  const std::string chosen = !given.empty() ? given : variable != nullptr ? variable : "";
  return boot + "/" + std::to_string(space) + "/" + std::to_string(getuid()) + "/" + chosen;
}

}  // namespace zero::detail

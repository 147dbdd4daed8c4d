#include "mesh/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "mesh/beat.h"

namespace zero::detail {
namespace {

std::string declared(const std::string& given) {
  const char* variable = std::getenv("ZERO_HOST");
  return !given.empty() ? given : variable != nullptr ? variable : "";
}

std::string name_of_machine() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

std::string host_name(const std::string& given) {
  const std::string chosen = declared(given);
  return one_line(chosen.empty() ? name_of_machine() : chosen, 64);
}

std::string host_identity(const std::string& given) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  if (boot.empty()) boot = name_of_machine();
  struct stat processes {};  // containers see processes of their own only
  const ino_t space = stat("/proc/self/ns/pid", &processes) == 0 ? processes.st_ino : 0;
  return boot + "/" + std::to_string(space) + "/" + std::to_string(getuid()) + "/" +
         one_line(declared(given), 200);
}

}  // namespace zero::detail

#include "ports.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace zero::tool {
namespace {

class Socket {
 public:
  Socket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

sockaddr_in address_of(in_addr host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr = host;
  return address;
}

// The port, or -1 and errno. A port that only waits for late packets counts as free.
int listen_on(const Socket& socket, int port) {
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address = address_of({INADDR_ANY}, port);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), generic, size) != 0 || ::listen(socket.get(), 1) != 0) return -1;
  return ::getsockname(socket.get(), generic, &size) == 0 ? ntohs(address.sin_port) : -1;
}

bool reaches(in_addr host, int port) {
  const Socket socket;
  const timeval patience{.tv_sec = 2, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const sockaddr_in address = address_of(host, port);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// The first IPv4 address of a name, or false.
bool resolve(const std::string& name, in_addr& out) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return false;
  out = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr;
  ::freeaddrinfo(found);
  return true;
}

}  // namespace

PortFinding look_at_ports(const std::string& host, int port) {
  const Socket listener;
  const int chosen = listen_on(listener, 0);
  if (chosen < 0) return {std::string("none can be opened: ") + std::strerror(errno), "permit TCP sockets"};
  in_addr address{};
  if (!resolve(host, address))
    return {host + " has no address",
            "add a line for it to /etc/hosts, or give the host a name that has one"};
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &address, text.data(), text.size());
  const std::string at = host + " is " + text.data();
  if (!reaches(address, chosen))
    return {at + ", where a program of this host does not answer",
            "correct /etc/hosts, or permit TCP connections of the host to itself in its firewall"};
  if (port < 0) return {at + ", and answers there", ""};
  const Socket master;
  if (listen_on(master, port) < 0)
    return {at + ", and answers there; port " + std::to_string(port) + ": " + std::strerror(errno),
            "end the program that has it, or set MASTER_PORT to another one for all ranks"};
  return {at + ", and answers there; port " + std::to_string(port) + " is free", ""};
}

PortFinding look_at_ports() {
  std::array<char, HOST_NAME_MAX + 1> host{};
  ::gethostname(host.data(), host.size() - 1);
  constexpr int kDefaultPort = 29500;
  int port = kDefaultPort;
  if (const char* given = std::getenv("MASTER_PORT"); given != nullptr) {
    const char* const end = given + std::strlen(given);
    const auto read = std::from_chars(given, end, port);
    if (read.ec != std::errc() || read.ptr != end || port < 1 || port > 65535)
      return {"MASTER_PORT is \"" + std::string(given) + "\"", "set it to a number from 1 to 65535"};
  }
  // Ranks that a launcher started have met through it.
  const bool is_launched = std::getenv("MASTER_ADDR") != nullptr;
  return look_at_ports(host.data(), is_launched ? -1 : port);
}

}  // namespace zero::tool

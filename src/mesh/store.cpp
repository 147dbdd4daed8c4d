#include "mesh/store.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mesh/diagnosis.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

std::string endpoint(const Rendezvous& rendezvous) {
  return rendezvous.address + ":" + std::to_string(rendezvous.port);
}

std::string rank_name(const Rendezvous& rendezvous) { return "rank " + std::to_string(rendezvous.rank); }

// A listening socket; nobody else can take the port between now and the server's start.
int listen_on(const Rendezvous& rendezvous) {
  bool six = rendezvous.address.find(':') != std::string::npos;
  int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(fd >= 0, ErrorKind::Comm, rank_name(rendezvous),
          std::string("cannot make a socket: ") + strerror(errno));
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  bool local = is_loopback(rendezvous.address);
  sockaddr_storage storage{};
  socklen_t length = 0;
  if (six) {
    auto* address = reinterpret_cast<sockaddr_in6*>(&storage);
    address->sin6_family = AF_INET6;
    address->sin6_port = htons(static_cast<uint16_t>(rendezvous.port));
    address->sin6_addr = local ? in6addr_loopback : in6addr_any;
    length = sizeof *address;
  } else {
    auto* address = reinterpret_cast<sockaddr_in*>(&storage);
    address->sin_family = AF_INET;
    address->sin_port = htons(static_cast<uint16_t>(rendezvous.port));
    address->sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
    length = sizeof *address;
  }
  if (bind(fd, reinterpret_cast<sockaddr*>(&storage), length) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  int cause = errno;
  close(fd);
  if (cause == EADDRINUSE)
    fail(ErrorKind::Config, rank_name(rendezvous), "port " + std::to_string(rendezvous.port) + " is in use",
         "set MASTER_PORT to a free port, or start the ranks with zero launch, which finds one");
  fail(ErrorKind::Config, rank_name(rendezvous),
       "cannot listen on " + endpoint(rendezvous) + ": " + strerror(cause));
}

void check_listening(const Rendezvous& rendezvous) {
  int listening = 0;
  socklen_t length = sizeof listening;
  int rc = getsockopt(rendezvous.listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length);
  require(rc == 0 && listening, ErrorKind::Config, rank_name(rendezvous),
          "ZERO_LISTEN_FD=" + std::to_string(rendezvous.listen_fd) + " is not a listening socket",
          "unset it; zero launch sets it for the ranks it starts");
}

c10d::TCPStoreOptions client_options(const Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(rendezvous.port);
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

// What c10d's store does may block for ever where the other side accepts connections and is silent: it has
// timeouts for connecting and for waiting, but not for an answer. Nothing where `call` is not over in time;
// its thread is left behind then, with what it holds.
template <class Call>
auto within(std::chrono::milliseconds limit, Call call) -> std::optional<decltype(call())> {
  std::packaged_task<decltype(call())()> task(std::move(call));
  auto result = task.get_future();
  std::thread thread(std::move(task));
  if (result.wait_for(limit) != std::future_status::ready) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return result.get();
}

// From the timeouts of the store itself, which say more, to ours.
constexpr std::chrono::milliseconds kSlack{250};

[[noreturn]] void nobody_answered(const Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
  fail(ErrorKind::Comm, rank_name(rendezvous),
       (rendezvous.external_store ? "the launcher's store" : "rank 0") + std::string(" did not answer on ") +
           endpoint(rendezvous) + " within " + std::to_string(timeout.count()) + " ms",
       "check that rank 0 runs and that MASTER_ADDR and MASTER_PORT name its host and port");
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
  auto options = client_options(rendezvous, timeout);
  if (rendezvous.rank == 0 && !rendezvous.external_store) {
    options.isServer = true;
    if (rendezvous.listen_fd >= 0) check_listening(rendezvous);
    options.masterListenFd = rendezvous.listen_fd >= 0 ? rendezvous.listen_fd : listen_on(rendezvous);
  }
  try {
    auto store = within(timeout + kSlack,
                        [address = rendezvous.address, options]() -> c10::intrusive_ptr<c10d::Store> {
                          return c10::make_intrusive<c10d::TCPStore>(address, options);
                        });
    if (store) return *store;
  } catch (const std::exception& e) {
    if (options.isServer)
      fail(ErrorKind::Comm, rank_name(rendezvous),
           "cannot serve the store on " + endpoint(rendezvous) + ": " + one_line(e.what(), 200));
  }
  nobody_answered(rendezvous, timeout);
}

std::string mesh_prefix(c10::intrusive_ptr<c10d::Store> store, const Rendezvous& rendezvous,
                        std::chrono::milliseconds timeout) {
  const std::string job = "zero/" + rendezvous.attempt;
  const std::string joins = job + "/joins/" + std::to_string(rendezvous.rank);
  try {
    const auto join =
        within(timeout + kSlack, [=, store = std::move(store)] { return store->add(joins, 1); });
    if (join) return job + "/" + std::to_string(*join);
  } catch (const std::exception& e) {
    fail(ErrorKind::Comm, rank_name(rendezvous), "the store failed: " + one_line(e.what(), 200),
         "see what rank 0 printed");
  }
  nobody_answered(rendezvous, timeout);
}

c10::intrusive_ptr<c10d::Store> reopen_store(const Rendezvous& rendezvous,
                                             std::chrono::milliseconds timeout) {
  return c10::make_intrusive<c10d::TCPStore>(rendezvous.address, client_options(rendezvous, timeout));
}

std::string outgoing_address(const std::string& address) {
  if (is_loopback(address)) return "127.0.0.1";
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  int rc = getaddrinfo(address.c_str(), "9", &hints, &found);
  require(rc == 0, ErrorKind::Config, "rendezvous address " + address, gai_strerror(rc), "set MASTER_ADDR");
  // Connecting a datagram socket sends nothing; it only picks the route.
  int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  bool ok = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
            getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
  char text[NI_MAXHOST] = "";
  ok = ok && getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                         NI_NUMERICHOST) == 0;
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  require(ok, ErrorKind::Config, "rendezvous address " + address, "this host has no route to it",
          "set MeshOptions::interface_address");
  return text;
}

namespace {

// The store ends with rank 0, which may find fault with the greetings: the others must have read them too.
void let_all_read(c10d::Store& store, const Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
  const auto key = [](int rank) { return "read/" + std::to_string(rank); };
  if (rendezvous.rank != 0) return store.set(key(rendezvous.rank), std::string("read"));
  std::vector<std::string> keys;
  for (int rank = 1; rank < rendezvous.size; ++rank) keys.push_back(key(rank));
  try {
    store.wait(keys, std::min(timeout, std::chrono::milliseconds(1000)));
  } catch (const std::exception&) {  // a rank that has ended reads no more
  }
}

std::vector<std::string> greet(c10d::Store& store, const Rendezvous& rendezvous, const std::string& greeting,
                               std::chrono::milliseconds timeout) {
  auto key = [](int rank) { return "arrived/" + std::to_string(rank); };
  std::vector<std::string> keys;
  keys.reserve(rendezvous.size);
  for (int rank = 0; rank < rendezvous.size; ++rank) keys.push_back(key(rank));
  std::vector<std::string> greetings;
  std::vector<int> missing;
  try {
    store.set(key(rendezvous.rank), std::vector<uint8_t>(greeting.begin(), greeting.end()));
    try {
      store.wait(keys, timeout);
    } catch (const std::exception&) {
      for (int rank = 0; rank < rendezvous.size; ++rank)
        if (!store.check({key(rank)})) missing.push_back(rank);
      if (missing.empty()) throw;
      // The store ends with rank 0: the others, whose time is up about now, must still be able to ask it.
      if (rendezvous.rank == 0)
        std::this_thread::sleep_for(std::min(timeout, std::chrono::milliseconds(1000)));
    }
    if (missing.empty()) {
      for (const auto& bytes : store.multiGet(keys)) greetings.emplace_back(bytes.begin(), bytes.end());
      let_all_read(store, rendezvous, timeout);
    }
  } catch (const std::exception& e) {
    fail(ErrorKind::Comm, rank_name(rendezvous) + ", joining at " + endpoint(rendezvous),
         "the store failed: " + one_line(e.what(), 200), "see what rank 0 printed");
  }
  require(missing.empty(), ErrorKind::Comm, rank_name(rendezvous) + ", joining at " + endpoint(rendezvous),
          list_ranks(missing) + " of " + std::to_string(rendezvous.size) + " did not come within " +
              std::to_string(timeout.count()) + " ms",
          "see what they printed, or start them");
  return greetings;
}

}  // namespace

std::vector<std::string> meet(c10::intrusive_ptr<c10d::Store> store, const Rendezvous& rendezvous,
                              const std::string& greeting, std::chrono::milliseconds timeout) {
  // Time to wait, to ask who is missing, and for rank 0 to let the others ask.
  const auto limit = timeout + std::chrono::seconds(2);
  auto greetings =
      within(limit, [=, store = std::move(store)] { return greet(*store, rendezvous, greeting, timeout); });
  require(greetings.has_value(), ErrorKind::Comm,
          rank_name(rendezvous) + ", joining at " + endpoint(rendezvous), "the store has stopped answering",
          "see what rank 0 does");
  return *std::move(greetings);
}

}  // namespace zero::detail

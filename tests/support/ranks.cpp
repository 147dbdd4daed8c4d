#include "support/ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <stdexcept>

#include "support/test_device.h"

namespace zero::testing {
namespace {

using Clock = std::chrono::steady_clock;

// A rank's messages to the parent: one letter, a 64-bit length, bytes.
enum Message : char { kFailure = 'F', kError = 'E', kBytes = 'B', kDone = 'D' };

int report_fd = -1;  // in a rank: the pipe to the parent

void send_message(Message kind, std::string_view text) {
  std::string frame(1, kind);
  uint64_t length = text.size();
  frame.append(reinterpret_cast<const char*>(&length), sizeof length).append(text);
  for (size_t sent = 0; sent < frame.size();) {
    ssize_t n = write(report_fd, frame.data() + sent, frame.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(3);
    sent += n;
  }
}

class FailureReporter : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    send_message(kFailure, std::string(result.file_name() ? result.file_name() : "unknown file") + ":" +
                               std::to_string(result.line_number()) + ": " + result.message());
    failed = true;
  }

 public:
  bool failed = false;
};

[[noreturn]] void run_child(const std::function<void(Rendezvous)>& body, const Rendezvous& rendezvous) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  delete listeners.Release(listeners.default_xml_generator());
  auto* reporter = new FailureReporter;
  listeners.Append(reporter);
  bool threw = true;
  try {
    body(rendezvous);
    threw = false;
  } catch (const std::exception& e) {
    send_message(kError, e.what());
  } catch (...) {
    send_message(kError, "an exception that is no std::exception");
  }
  send_message(kDone, "");
  fflush(nullptr);
  _exit(threw || reporter->failed ? 1 : 0);
}

struct Child {
  pid_t pid = -1;
  int pipe = -1;
  std::string buffer;
  bool done = false;
  bool killed = false;
  RankResult result;

  // Takes complete messages out of the buffer.
  void parse() {
    uint64_t length = 0;
    while (buffer.size() >= 1 + sizeof length) {
      memcpy(&length, buffer.data() + 1, sizeof length);
      if (buffer.size() - 1 - sizeof length < length) return;
      std::string text = buffer.substr(1 + sizeof length, length);
      switch (buffer[0]) {
        case kFailure:
          result.failures.push_back(std::move(text));
          break;
        case kError:
          result.error = std::move(text);
          break;
        case kBytes:
          result.bytes += text;
          break;
        default:
          done = true;
      }
      buffer.erase(0, 1 + sizeof length + length);
    }
  }

  // Reads what is there; closes the pipe at its end.
  void read_some() {
    char chunk[65536];
    ssize_t n = read(pipe, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) return;
    if (n > 0) {
      buffer.append(chunk, n);
      parse();
      return;
    }
    close(pipe);
    pipe = -1;
  }
};

struct Listener {
  int fd = -1;
  int port = 0;
};

Listener listen_on_loopback() {
  Listener listener{socket(AF_INET, SOCK_STREAM, 0), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (listener.fd < 0 || bind(listener.fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener.fd, 128) != 0 ||
      getsockname(listener.fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error(std::string("cannot listen on 127.0.0.1: ") + strerror(errno));
  listener.port = ntohs(address.sin_port);
  return listener;
}

// A forked child has none of its parent's other threads, but their locks.
void require_no_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  if (std::distance(begin(threads), end(threads)) > 1)
    throw std::runtime_error("this test program has threads: it cannot fork ranks");
}

Child start(const std::function<void(Rendezvous)>& body, Rendezvous rendezvous) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  fflush(nullptr);
  Child child;
  child.pid = fork();
  if (child.pid < 0) throw std::runtime_error("cannot fork");
  if (child.pid == 0) {
    close(ends[0]);
    report_fd = ends[1];
    if (rendezvous.rank != 0) {
      close(rendezvous.listen_fd);
      rendezvous.listen_fd = -1;
    }
    run_child(body, rendezvous);
  }
  close(ends[1]);
  child.pipe = ends[0];
  return child;
}

// Reads all pipes to their ends; at the deadline kills what is still running.
void drain(std::vector<Child>& children, Clock::time_point deadline) {
  for (bool expired = false;;) {
    std::vector<pollfd> polls;
    std::vector<Child*> owners;
    for (auto& child : children) {
      if (child.pipe < 0) continue;
      polls.push_back({child.pipe, POLLIN, 0});
      owners.push_back(&child);
    }
    if (polls.empty()) return;
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 && !expired) {
      expired = true;
      for (auto* child : owners) {
        kill(child->pid, SIGKILL);
        child->killed = true;
      }
    }
    int ready = poll(polls.data(), polls.size(), expired ? 2000 : static_cast<int>(left));
    if (ready == 0 && expired) return;  // a grandchild still holds the pipe
    for (size_t i = 0; i < polls.size() && ready > 0; ++i)
      if (polls[i].revents) owners[i]->read_some();
  }
}

void reap(Child& child) {
  if (child.pipe >= 0) close(child.pipe);
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  child.result.exit = child.killed ? -1 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Fails the test for all that a rank should not have done.
void judge(int rank, const RankResult& result, const RankOptions& options) {
  const std::string who = "rank " + std::to_string(rank) + ": ";
  for (const auto& failure : result.failures) ADD_FAILURE() << who << failure;
  auto expected = options.exits.find(rank);
  int wanted = expected == options.exits.end() ? 0 : expected->second;
  if (!result.error.empty() && wanted != 1) ADD_FAILURE() << who << "threw " << result.error;
  if (result.exit == wanted) return;
  if (result.exit == -1)
    ADD_FAILURE() << who << "not done after " << options.timeout.count() << " ms and killed";
  else if (result.failures.empty() && result.error.empty())
    ADD_FAILURE() << who << "exit status " << result.exit << ", expected " << wanted;
}

std::vector<RankResult> judged(std::vector<RankResult> results, const RankOptions& options) {
  for (size_t rank = 0; rank < results.size(); ++rank) judge(static_cast<int>(rank), results[rank], options);
  return results;
}

}  // namespace

std::vector<RankResult> collect_processes(int n, const std::function<void(Rendezvous)>& body,
                                          const RankOptions& options) {
#ifndef __SANITIZE_THREAD__  // which has a thread of its own
  require_no_threads();
#endif
  auto deadline = Clock::now() + options.timeout;
  Listener listener = listen_on_loopback();
  std::vector<Child> children;
  for (int rank = 0; rank < n; ++rank) {
    Rendezvous rendezvous;
    rendezvous.rank = rendezvous.local_rank = rank;
    rendezvous.size = rendezvous.local_size = n;
    rendezvous.port = listener.port;
    rendezvous.listen_fd = listener.fd;
    children.push_back(start(body, rendezvous));
  }
  close(listener.fd);
  drain(children, deadline);
  std::vector<RankResult> results;
  for (auto& child : children) {
    reap(child);
    results.push_back(std::move(child.result));
  }
  return results;
}

std::vector<RankResult> collect_ranks(int n, const std::function<void(Mesh)>& body,
                                      const RankOptions& options) {
  const TestPlace& place = test_place();
  RankOptions there = options;
  if (place.prepare && options.mesh.device.is_cpu()) place.prepare(there);
  const auto in_rank = [&](const Rendezvous& rendezvous) {
    if (place.begin_rank) place.begin_rank();
    MeshOptions own = there.mesh;
    if (!options.hosts.empty()) own.host = options.hosts.at(static_cast<size_t>(rendezvous.rank));
    body(Mesh::join(rendezvous, own));
    if (place.end_rank) place.end_rank();
  };
  return collect_processes(n, in_rank, options);
}

std::vector<RankResult> run_ranks(int n, const std::function<void(Mesh)>& body, const RankOptions& options) {
  return judged(collect_ranks(n, body, options), options);
}

void hand_back(std::string_view bytes) { send_message(kBytes, bytes); }

void hand_back(const at::Tensor& tensor) {
  at::Tensor flat = tensor.detach().cpu().contiguous();
  hand_back(std::string_view(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()));
}

at::Tensor tensor_from_bytes(const std::string& bytes, at::ScalarType dtype) {
  int64_t count = static_cast<int64_t>(bytes.size() / c10::elementSize(dtype));
  at::Tensor tensor = at::empty({count}, at::TensorOptions().dtype(dtype));
  memcpy(tensor.mutable_data_ptr(), bytes.data(), count * c10::elementSize(dtype));
  return tensor;
}

}  // namespace zero::testing

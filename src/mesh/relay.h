#pragma once
// The thread of a channel whose operations have several legs: what comes over one goes on over another, also
// while nobody is inside a wait. Ranks issue the same operations in the same order, so that doing one after
// the other never makes two ranks wait for each other.

#include <torch/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "mesh/transport.h"

namespace zero::detail {

/// One operation of a Relay.
class RelayJob {
 public:
  /// In the relay's thread: blocks until a leg is over. Where it fails the error names `peers` (group ranks).
  void wait(Transfer& leg, const std::vector<int>& peers);

 private:
  friend class Relay;
  friend class RelayTransfer;

  std::function<void(RelayJob&)> body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false, is_aborted_ = false;
  std::exception_ptr error_;
  Transfer* leg_ = nullptr;  // that the thread waits for
  std::vector<int> awaited_;

  void run() noexcept;
  void fail(std::exception_ptr error);
  void abort() noexcept;
};

class Relay {
 public:
  Relay() = default;
  /// Gives up what is under way.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Runs `body` after all that was started before, in a thread that is made with the first one. Once one has
  /// failed, all later ones fail alike.
  std::unique_ptr<Transfer> start(std::function<void(RelayJob&)> body);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<RelayJob>> jobs_;  // the first one is running
  bool ends_ = false;
  std::exception_ptr broken_;
  std::thread thread_;
};

}  // namespace zero::detail

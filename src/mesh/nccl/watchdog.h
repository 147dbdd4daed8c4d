#pragma once
// The thread that looks after a mesh's communicators: on a device nobody else blocks in a collective, so
// nobody else would see that it never ends.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "mesh/nccl/communicator.h"

namespace zero::detail::nccl {

class Watchdog {
 public:
  explicit Watchdog(std::chrono::milliseconds interval);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on, as long as others hold it.
  void add(const std::shared_ptr<Communicator>& communicator);

 private:
  void run();

  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stops_ = false;
  std::vector<std::weak_ptr<Communicator>> communicators_;
  std::thread thread_;
};

}  // namespace zero::detail::nccl

#include "mesh/nccl/watchdog.h"

#include <exception>

namespace zero::detail::nccl {

Watchdog::Watchdog(std::chrono::milliseconds interval) : interval_(interval), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  stopping_.notify_all();
  thread_.join();
}

void Watchdog::add(const std::shared_ptr<Communicator>& communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(communicator);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, interval_, [this] { return stops_; })) {
    std::erase_if(communicators_, [](const auto& communicator) { return communicator.expired(); });
    const auto now = Communicator::Clock::now();
    for (const auto& weak : communicators_) {
      const std::shared_ptr<Communicator> communicator = weak.lock();
      if (communicator == nullptr) continue;
      try {
        communicator->watch(now);
      } catch (const std::exception& e) {  // the device itself fails
        const std::string text = e.what();
        communicator->abort(text.substr(0, text.find('\n')), Communicator::Cause::Nccl);
      }
    }
  }
}

}  // namespace zero::detail::nccl

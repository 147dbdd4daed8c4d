#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tiers/block_device.h"

namespace zero::tiers {
namespace {

class ThreadDevice : public BlockDevice {
 public:
  ThreadDevice(int descriptor, int threads, std::string reason)
      : descriptor_(descriptor), reason_(std::move(reason)) {
    threads_.reserve(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ThreadDevice() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    to_do_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void start(const Transfer& transfer) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(transfer);
    }
    to_do_.notify_one();
  }

  Result wait() override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !results_.empty(); });
    const Result result = results_.front();
    results_.pop_front();
    return result;
  }

  std::string description() const override {
    return std::to_string(threads_.size()) + (threads_.size() == 1 ? " thread" : " threads") +
           (reason_.empty() ? "" : " (" + reason_ + ")");
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      to_do_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Transfer transfer = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const auto bytes = static_cast<size_t>(transfer.bytes);
      const ssize_t moved = transfer.writes ? ::pwrite(descriptor_, transfer.memory, bytes, transfer.offset)
                                            : ::pread(descriptor_, transfer.memory, bytes, transfer.offset);
      const Result result{.tag = transfer.tag, .bytes = moved < 0 ? -errno : moved};
      lock.lock();
      results_.push_back(result);
      done_.notify_one();
    }
  }

  const int descriptor_;
  const std::string reason_;
  std::mutex mutex_;
  std::condition_variable to_do_, done_;
  std::deque<Transfer> waiting_;
  std::deque<Result> results_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockDevice> open_thread_device(int descriptor, int threads, const std::string& reason) {
  return std::make_unique<ThreadDevice>(descriptor, threads, reason);
}

}  // namespace zero::tiers

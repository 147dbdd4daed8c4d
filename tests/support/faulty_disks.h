#pragma once
// A disk of which tests say what goes wrong.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "tiers/block_device.h"

namespace zero::testing {

/// What goes wrong with the transfers of one device, counted by kind from 0.
struct DiskFaults {
  int64_t most_bytes = INT64_MAX;         // of a transfer
  int interrupted = 0, try_again = 0;     // so many transfers come back with EINTR, EAGAIN
  int error = 0, error_from = INT32_MAX;  // from this transfer of the chosen kind on
  bool of_writes = false;
  int flipped_read = -1;               // this read comes back with one bit changed
  int killed_at_write = -1;            // the process ends while this write is under way
  std::atomic<int>* writes = nullptr;  // counts them, if not null
};

class FaultyDevice : public tiers::BlockDevice {
 public:
  FaultyDevice(std::unique_ptr<tiers::BlockDevice> real, const DiskFaults& faults)
      : real_(std::move(real)), faults_(faults) {}

  void start(const Transfer& given) override {
    Transfer transfer = given;
    if (faults_.interrupted-- > 0) return late_.push_back({.tag = given.tag, .bytes = -EINTR});
    if (faults_.try_again-- > 0) return late_.push_back({.tag = given.tag, .bytes = -EAGAIN});
    int& seen = given.writes ? writes_ : reads_;
    const int number = seen++;
    if (given.writes && faults_.writes != nullptr) ++*faults_.writes;
    if (given.writes == faults_.of_writes && number >= faults_.error_from)
      return late_.push_back({.tag = given.tag, .bytes = -faults_.error});
    if (!given.writes && number == faults_.flipped_read) flipped_ = given;
    transfer.bytes = std::min(transfer.bytes, faults_.most_bytes);
    real_->start(transfer);
    if (given.writes && number == faults_.killed_at_write) kill(getpid(), SIGKILL);
  }

  Result wait() override {
    if (!late_.empty()) {
      const Result result = late_.front();
      late_.pop_front();
      return result;
    }
    const Result result = real_->wait();
    if (flipped_.memory != nullptr && result.tag == flipped_.tag) {
      flipped_.memory[result.bytes / 2] ^= std::byte{4};
      flipped_.memory = nullptr;
    }
    return result;
  }

  std::string description() const override { return "faulty " + real_->description(); }

 private:
  std::unique_ptr<tiers::BlockDevice> real_;
  DiskFaults faults_;
  std::deque<Result> late_;
  Transfer flipped_;
  int reads_ = 0, writes_ = 0;
};

class FaultyDisks : public tiers::BlockDevices {
 public:
  explicit FaultyDisks(const DiskFaults& faults) : faults_(faults) {}
  std::unique_ptr<tiers::BlockDevice> open(int descriptor) const override {
    return std::make_unique<FaultyDevice>(tiers::open_thread_device(descriptor, 2, ""), faults_);
  }

 private:
  DiskFaults faults_;
};

}  // namespace zero::testing

#include "mesh/relay.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "mesh/sigpipe.h"

namespace zero::detail {
namespace {

// A leg has no time of its own: it may begin long before this rank, or another, comes to wait.
constexpr std::chrono::hours kForEver{24 * 365};

}  // namespace

void RelayJob::wait(Transfer& leg, const std::vector<int>& peers) {
  {
    const std::lock_guard lock(mutex_);
    if (is_aborted_) throw TransferError("aborted", {}, false, true);
    leg_ = &leg;
    awaited_ = peers;
  }
  std::exception_ptr error;
  try {
    leg.wait(kForEver);
  } catch (const TransferError& failed) {  // a leg knows its own numbers of ranks only
    error = std::make_exception_ptr(TransferError(failed.what(), peers, failed.timed_out, failed.aborted));
  }
  const std::lock_guard lock(mutex_);
  leg_ = nullptr;
  awaited_.clear();
  if (error) std::rethrow_exception(error);
}

void RelayJob::run() noexcept {
  std::exception_ptr error;
  try {
    const at::NoGradGuard no_grad;
    body_(*this);
  } catch (...) {
    error = std::current_exception();
  }
  fail(error);
}

// Or succeed, where there is no error.
void RelayJob::fail(std::exception_ptr error) {
  body_ = nullptr;  // what it keeps may go
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  is_done_ = true;
  changed_.notify_all();
}

void RelayJob::abort() noexcept {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  if (leg_ != nullptr) leg_->abort();
  changed_.notify_all();
}

/// What the issuing thread holds of a job.
class RelayTransfer final : public Transfer {
 public:
  explicit RelayTransfer(std::shared_ptr<RelayJob> job) : job_(std::move(job)) {}

  void wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(job_->mutex_);
    const bool is_over =
        job_->changed_.wait_for(lock, timeout, [&] { return job_->is_done_ || job_->is_aborted_; });
    if (!is_over) {
      const std::vector<int> awaited = job_->awaited_;
      lock.unlock();
      job_->abort();
      throw TransferError("timed out", awaited, true);
    }
    if (!job_->is_done_) throw TransferError("aborted", {}, false, true);
    if (job_->error_) std::rethrow_exception(job_->error_);
  }

  void abort() noexcept override { job_->abort(); }

 private:
  std::shared_ptr<RelayJob> job_;
};

std::unique_ptr<Transfer> Relay::start(std::function<void(RelayJob&)> body) {
  auto job = std::make_shared<RelayJob>();
  job->body_ = std::move(body);
  const std::lock_guard lock(mutex_);
  if (broken_) {
    job->fail(broken_);
  } else {
    jobs_.push_back(job);
    if (!thread_.joinable()) {
      const SigpipeBlock block;  // the thread inherits it
      thread_ = std::thread([this] { serve(); });
    }
    changed_.notify_all();
  }
  return std::make_unique<RelayTransfer>(std::move(job));
}

void Relay::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (ends_) return;
    const std::shared_ptr<RelayJob> job = jobs_.front();
    lock.unlock();
    job->run();
    lock.lock();
    jobs_.pop_front();
    if (!job->error_) continue;
    broken_ = job->error_;
    for (const auto& later : jobs_) later->fail(broken_);
    jobs_.clear();
  }
}

Relay::~Relay() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    for (const auto& job : jobs_) job->abort();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace zero::detail

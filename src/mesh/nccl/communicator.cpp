#include "mesh/nccl/communicator.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <thread>

namespace zero::detail::nccl {
namespace {

using std::chrono::milliseconds;

constexpr auto kGrace = std::chrono::seconds(3);  // for what is under way when a communicator is given up

c10::impl::VirtualGuardImpl streams_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

std::string key_of(int rank) { return "here/" + std::to_string(rank); }

}  // namespace

// High priority: a small kernel that others wait for need not wait for a large one's blocks to end.
Communicator::Communicator(const Library& library, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                           int size, c10::Device device, milliseconds timeout)
    : library_(library),
      device_(device),
      stream_(streams_of(device).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      timeout_(timeout) {
  connect(store, rank, size);
}

// NCCL waits for ever for a member that does not come, so all show themselves at the store first.
void Communicator::connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  UniqueId id{};
  std::vector<uint8_t> bytes(sizeof id);
  if (rank == 0) {
    const Result result = library_.GetUniqueId(&id);
    if (result != kSuccess) throw TransferError(text_of("ncclGetUniqueId", result), {}, false);
    std::memcpy(bytes.data(), &id, sizeof id);
  }
  store->set(key_of(rank), bytes);
  std::vector<std::string> everybody;
  for (int member = 0; member < size; ++member) everybody.push_back(key_of(member));
  store->wait(everybody, timeout_);
  bytes = store->get(key_of(0));
  std::memcpy(&id, bytes.data(), sizeof id);
  const c10::DeviceGuard guard(device_);
  const Result result = library_.CommInitRank(&comm_, size, id, rank);
  if (result != kSuccess) throw TransferError(text_of("ncclCommInitRank", result), {}, false);
}

Communicator::~Communicator() {
  const auto deadline = Clock::now() + kGrace;
  while (Clock::now() < deadline) {
    const std::lock_guard lock(mutex_);
    if (failure_ || running_.empty()) break;
    try {
      forget_ended();
    } catch (...) {  // the device is lost
      break;
    }
    if (!running_.empty()) std::this_thread::sleep_for(milliseconds(1));
  }
  abort("the mesh is gone", Cause::Asked);
}

std::shared_ptr<c10::Event> Communicator::run(const char* name, const Enqueue& enqueue) {
  const std::lock_guard lock(mutex_);
  check_locked();
  const c10::DeviceGuard guard(device_);
  c10::Event ready(device_.type());
  ready.record(streams_of(device_).getStream(device_));
  ready.block(stream_);
  const Result result = enqueue(comm_, stream_.native_handle());
  if (result != kSuccess) throw TransferError(text_of(name, result), {}, false);
  auto end = std::make_shared<c10::Event>(device_.type());
  end->record(stream_);
  running_.push_back({name, Clock::now(), end});
  return end;
}

void Communicator::check() const {
  const std::lock_guard lock(mutex_);
  check_locked();
}

void Communicator::check_locked() const {
  if (failure_)
    throw TransferError(failure_->text, {}, failure_->cause == Cause::Timeout,
                        failure_->cause == Cause::Asked);
}

void Communicator::make_stream_wait(const c10::Event& event) const {
  event.block(streams_of(device_).getStream(device_));
}

void Communicator::abort(const std::string& why, Cause cause) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = Failure{why, cause};
  running_.clear();
  if (comm_ != nullptr) library_.CommAbort(comm_);
  comm_ = nullptr;
}

void Communicator::watch(Clock::time_point now) {
  std::string problem;
  bool is_overdue = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || comm_ == nullptr) return;
    Result error = kSuccess;
    const Result result = library_.CommGetAsyncError(comm_, &error);
    if (result != kSuccess || error != kSuccess) {
      problem = text_of("NCCL", error != kSuccess ? error : result);
    } else {
      forget_ended();
      is_overdue = !running_.empty() && now - running_.front().since > timeout_;
      if (is_overdue)
        problem = std::string(running_.front().name) + " did not end within " +
                  std::to_string(timeout_.count()) + " ms";
    }
  }
  if (!problem.empty()) abort(problem, is_overdue ? Cause::Timeout : Cause::Nccl);
}

// They end in the order of the stream.
void Communicator::forget_ended() {
  while (!running_.empty() && running_.front().end->query()) running_.pop_front();
}

std::string Communicator::text_of(const char* name, Result result) const {
  return std::string(name) + ": " + library_.GetErrorString(result) + " (" + std::to_string(result) + ")";
}

}  // namespace zero::detail::nccl

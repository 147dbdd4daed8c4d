#include "mesh/group_state.h"

#include <algorithm>
#include <utility>

#include "zero/error.h"

namespace zero::detail {
namespace {

/// The monitor, if there is one, knows what this rank waits for, and may abort it.
class MonitoredWait {
 public:
  MonitoredWait(Monitor* monitor, Transfer& transfer, int slot, const Issued& issued) : monitor_(monitor) {
    if (monitor_ != nullptr && !monitor_->begin_wait(&transfer, slot, &issued)) transfer.abort();
  }
  ~MonitoredWait() {
    if (monitor_ != nullptr) monitor_->end_wait();
  }
  MonitoredWait(const MonitoredWait&) = delete;
  MonitoredWait& operator=(const MonitoredWait&) = delete;

 private:
  Monitor* monitor_;
};

}  // namespace

std::string GroupState::place(const Issued& issued) const {
  return "rank " + std::to_string(mesh_rank()) + ", " + describe(issued) + " in group " + name;
}

Issued GroupState::issue(Operation operation, std::string_view what, int64_t numel, Traffic moved) {
  bool ordered = operation != Operation::Send && operation != Operation::Receive;
  Issued issued{ordered ? ++sequence : 0, std::string(to_string(operation)), one_line(what, 200), numel};
  if (size() == 1) return issued;
  if (monitor != nullptr)
    if (auto reason = monitor->broken())
      fail(ErrorKind::Comm, place(issued), "not started, the job has failed: " + *reason);
  Traffic& sum = traffic[operation];
  sum.calls += 1;
  sum.elements += moved.elements;
  sum.bytes += moved.bytes;
  if (monitor != nullptr) monitor->issued(monitor_slot, issued);
  return issued;
}

void GroupState::attempt(const Issued& issued, const std::function<void()>& body) {
  try {
    body();
  } catch (const TransferError& error) {
    fail_with(issued, error);
  }
}

std::unique_ptr<Transfer> GroupState::begin(const Issued& issued,
                                            const std::function<std::unique_ptr<Transfer>(Channel&)>& start) {
  std::unique_ptr<Transfer> transfer;
  attempt(issued, [&] { transfer = start(*channel); });
  return transfer;
}

// Counts as waiting only what the channel did not spend on moving and adding up.
void GroupState::wait_for(const Issued& issued, Transfer& transfer, bool output_only) {
  const double worked_s = channel->worked_s();
  const auto began = Trace::Clock::now();
  output_only ? transfer.wait_output(timeout) : transfer.wait(timeout);
  const auto ended = Trace::Clock::now();
  const double took_s = std::chrono::duration<double>(ended - began).count();
  activity->waited_s += std::max(0.0, took_s - (channel->worked_s() - worked_s));
  if (activity->trace)
    activity->trace->span(Trace::Row::Wait, issued.operation + " " + issued.what, began, ended);
}

void GroupState::complete(const Issued& issued, Transfer& transfer, bool output_only) {
  try {
    const MonitoredWait watched(monitor.get(), transfer, monitor_slot, issued);
    wait_for(issued, transfer, output_only);
  } catch (const TransferError& error) {
    fail_with(issued, error);
  }
  if (issued.sequence == 0) return;
  // A broadcast ends on a rank without the others but its root.
  if (issued.sequence > completed.sequence && issued.operation != to_string(Operation::Broadcast))
    completed = issued;
  finish_abandoned(issued.sequence);
}

void GroupState::fail_with(const Issued& issued, const TransferError& error) {
  Incident incident;
  incident.group = name;
  incident.members = members;
  incident.rank = mesh_rank();
  incident.issued = issued;
  incident.timed_out = error.timed_out;
  incident.aborted = error.aborted;
  incident.completed = completed;
  if (host_names) incident.hosts = *host_names;
  incident.timeout = timeout;
  incident.text = error.what();
  for (int peer : error.peers) incident.peers.push_back(members[peer]);
  if (monitor == nullptr) fail(ErrorKind::Comm, place(issued), incident.text);
  const Diagnosis diagnosis = monitor->diagnose(incident);
  fail(ErrorKind::Comm, place(issued), diagnosis.text, diagnosis.remedy);
}

void GroupState::abandon(const Issued& issued, std::unique_ptr<Transfer> transfer) {
  abandoned[issued.sequence].push_back(std::move(transfer));
}

// An operation that has ended shows that all ranks have issued all before it, so those end without anybody's
// help. Sends and receives (number 0) have no such order and are kept as long as the group.
void GroupState::finish_abandoned(uint64_t before) {
  for (auto entry = abandoned.upper_bound(0); entry != abandoned.end() && entry->first < before;) {
    for (auto& transfer : entry->second) {
      try {
        transfer->wait(timeout);
      } catch (
          const TransferError&) {  // nobody looks at its result; a broken peer shows in the next operation
      }
    }
    entry = abandoned.erase(entry);
  }
}

WorkState::~WorkState() {
  // Once the output was there, nothing is left that anybody must wait for.
  if (transfer_ && !error_ && !output_ready_) group_->abandon(issued_, std::move(transfer_));
}

void WorkState::run(const std::function<void()>& body) {
  if (error_) std::rethrow_exception(error_);
  try {
    body();
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

// From its start to where this rank saw its outputs.
void WorkState::take_down() {
  Trace* trace = group_->activity->trace.get();
  if (trace == nullptr) return;
  trace->span(Trace::Row::Collective, issued_.operation + " " + issued_.what, begun_, Trace::Clock::now(),
              issued_.numel);
}

void WorkState::wait_output() {
  if (!transfer_ || finish_ || !transfer_->output_comes_first()) return wait();
  run([&] {
    if (!output_ready_) {
      group_->complete(issued_, *transfer_, true);
      take_down();
    }
    output_ready_ = true;
  });
}

void WorkState::wait() {
  run([&] {
    if (transfer_) group_->complete(issued_, *transfer_);
    transfer_.reset();
    if (finish_) finish_();
    finish_ = nullptr;
    if (!std::exchange(output_ready_, true)) take_down();
  });
}

int transfer_tag(const Issued& issued, at::ScalarType dtype, int phase) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  auto mix = [&](const void* data, size_t count) {
    for (size_t i = 0; i < count; ++i)
      hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  };
  mix(&issued.sequence, sizeof issued.sequence);
  mix(&issued.numel, sizeof issued.numel);
  mix(issued.operation.data(), issued.operation.size());
  mix(issued.what.data(), issued.what.size());
  mix(&dtype, sizeof dtype);
  mix(&phase, sizeof phase);
  return static_cast<int>((hash ^ (hash >> 33)) & 0x7fffffff);
}

}  // namespace zero::detail

#include "virtual/machine.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/glob.h"
#include "zero/error.h"

namespace zero::virtual_device {
namespace {

constexpr Picoseconds kAskingTime = 1'000'000;  // of the host, for each question whether an event has come

SpanKind kind_of(Lane lane) {
  return lane == Lane::Compute  ? SpanKind::Compute
         : lane == Lane::CopyIn ? SpanKind::CopyIn
                                : SpanKind::CopyOut;
}

SpanKind kind_of_collective(std::string_view name) {
  return name == "all_gather"       ? SpanKind::AllGather
         : name == "reduce_scatter" ? SpanKind::ReduceScatter
                                    : SpanKind::Collective;
}

}  // namespace

Machine::Machine(const DeviceDescription& description, const Options& options)
    : description_(description), options_(options) {
  const auto devices = static_cast<size_t>(options.devices);
  busy_until_.resize(devices);
  limbo_.resize(devices);
  work_.resize(devices);
  computing_.resize(devices);
  communicating_.resize(devices);
  for (int device = 0; device < options.devices; ++device)
    arenas_.push_back(std::make_unique<Arena>(*this, device, static_cast<size_t>(options.capacity_bytes)));
}

bool Machine::has_operator(const std::string& name) const {
  return std::any_of(options_.device_operators.begin(), options_.device_operators.end(),
                     [&](const std::string& glob) { return glob_matches(glob, name); });
}

Stamp Machine::launch(int clock, const char* work) {
  const std::lock_guard lock(mutex_);
  drain_host_accesses();
  Moment& state = state_[clock];
  state.seen.join(state_[kHost].seen);
  const Stamp at{clock, ++epoch_[clock], work};
  state.seen.see(at);
  run_queue(state.seen);
  return at;
}

void Machine::spend(const Stamp& at, Lane lane, Picoseconds duration, double bytes, double flops) {
  const std::lock_guard lock(mutex_);
  const auto device = static_cast<size_t>(device_of(at.clock));
  const auto part = static_cast<size_t>(lane);
  Moment& state = state_[at.clock];
  Picoseconds& busy = busy_until_[device][part];
  state_[kHost].time += description_.launch_ns * 1000;
  const Picoseconds begin = std::max({state.time, state_[kHost].time, busy});
  busy = state.time = begin + duration;
  if (description_.host_computes) state_[kHost].time = state.time;
  Work& work = work_[device];
  work.busy[part] += duration;
  work.lane_bytes[part] += bytes;
  if (lane == Lane::Compute) {
    ++work.kernels;
    work.flops += flops;
    work.kernel_bytes += bytes;
  } else {
    ++work.copies;
    work.copied_bytes += bytes;
  }
  if (options_.trace) timeline_.add({at.work, kind_of(lane), at.clock, begin, duration, bytes, flops});
  if (keeps_overlap() && lane == Lane::Compute) computing_[device].add(begin, begin + duration);
}

Picoseconds Machine::ready_time(int clock) {
  const std::lock_guard lock(mutex_);
  Picoseconds& host = state_[kHost].time;
  host += description_.launch_ns * 1000;
  return std::max(state_[clock].time, host);
}

void Machine::finish(const Stamp& at, Picoseconds begin, Picoseconds end, double bytes) {
  const std::lock_guard lock(mutex_);
  Picoseconds& time = state_[at.clock].time;
  time = std::max(time, end);
  if (description_.host_computes) state_[kHost].time = std::max(state_[kHost].time, end);
  if (options_.trace)
    timeline_.add({at.work, kind_of_collective(at.work), at.clock, begin, end - begin, bytes, 0});
  if (keeps_overlap()) communicating_[static_cast<size_t>(device_of(at.clock))].add(begin, end);
}

Machine::Overlap Machine::overlap(int device) {
  const std::lock_guard lock(mutex_);
  BusyTime& communicating = communicating_.at(static_cast<size_t>(device));
  return {communicating.total(), communicating.outside(computing_.at(static_cast<size_t>(device)))};
}

void Machine::begin_measure() {
  const std::lock_guard lock(mutex_);
  timeline_.clear();
  for (BusyTime& busy : computing_) busy.clear();
  for (BusyTime& busy : communicating_) busy.clear();
}

Picoseconds Machine::host_time() {
  const std::lock_guard lock(mutex_);
  return state_[kHost].time;
}

Moment Machine::record(int clock) {
  const std::lock_guard lock(mutex_);
  Moment& state = state_[clock];
  state.seen.join(state_[kHost].seen);
  return state;
}

void Machine::wait(int clock, const Moment& moment) {
  const std::lock_guard lock(mutex_);
  state_[clock].follow(moment);
}

void Machine::host_waits(const Moment& moment) {
  const std::lock_guard lock(mutex_);
  state_[kHost].follow(moment);
  run_queue(state_[kHost].seen);
}

bool Machine::leaves_out_wait(const char* place) {
  if (*place == '\0') return false;
  const std::lock_guard lock(mutex_);
  wait_places_.insert(place);
  const auto& left_out = options_.left_out_waits;
  return std::find(left_out.begin(), left_out.end(), place) != left_out.end();
}

void Machine::note_host_wait(int device, const std::string& operation) {
  const std::lock_guard lock(mutex_);
  ++work_[device].host_waits[operation];
}

bool Machine::host_asks(const Moment& moment) {
  const std::lock_guard lock(mutex_);
  if (moment.time > state_[kHost].time) {
    state_[kHost].time += kAskingTime;
    return false;
  }
  host_waits(moment);
  return true;
}

void Machine::synchronize(int clock) {
  const std::lock_guard lock(mutex_);
  host_waits(state_[clock]);
}

void Machine::synchronize_device(int device) {
  const std::lock_guard lock(mutex_);
  for (int stream = 0; stream < kStreamsOfDevice; ++stream) synchronize(clock_of(device, stream));
}

void Machine::synchronize_all() {
  for (int device = 0; device < options_.devices; ++device) synchronize_device(device);
}

Picoseconds Machine::end_time() {
  const std::lock_guard lock(mutex_);
  Picoseconds end = 0;
  for (const Moment& state : state_) end = std::max(end, state.time);
  return end;
}

void Machine::queue_copy(const Stamp& at, const Touch& pinned, bool writes_host, std::function<void()> run) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({at, pinned.block, pinned.region, writes_host, std::move(run)});
  protect(*pinned.block);
}

// A copy that another one must come after was issued before it, so one pass in the order of issue is enough.
// Its pinned memory stays closed until the host has seen it: a stream's order alone tells the host nothing.
void Machine::run_queue(const VectorClock& seen) {
  std::vector<std::function<void()>> done;  // they go last: pinned memory may go with their tensors
  for (size_t i = 0; i < queue_.size();) {
    QueuedCopy& copy = queue_[i];
    Block& pinned = *copy.pinned;
    if (copy.run && seen.has_seen(copy.at)) {
      done.push_back(std::exchange(copy.run, nullptr));
      open(pinned);
      done.back()();
      protect(pinned);
    }
    if (copy.run || !state_[kHost].seen.has_seen(copy.at)) {
      ++i;
      continue;
    }
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    protect(pinned);
  }
}

void Machine::add_sample(KernelSample sample) {
  const std::lock_guard lock(mutex_);
  samples_.push_back(std::move(sample));
}

std::vector<KernelSample> Machine::take_samples() {
  const std::lock_guard lock(mutex_);
  return std::exchange(samples_, {});
}

void Machine::note(const Touch& touch, bool is_write, const Stamp& at) {
  if (!options_.checks || touch.block == nullptr || touch.region.empty()) return;
  const std::lock_guard lock(mutex_);
  Block& block = *touch.block;
  if (block.is_free && block.arena != nullptr) {
    note_fault(FaultKind::UseAfterFree, std::string(at.work) + (is_write ? " writes " : " reads ") +
                                            text_of(touch) + ", which was freed; keep its tensor alive");
    return;
  }
  const Access now{touch.region, at, is_write, block.owner};
  block.accesses.add(now, state_[at.clock].seen,
                     [&](const Access& earlier) { tell_conflict(touch, earlier, now); });
}

void Machine::require_written(const Touch& touch, const Stamp& at) {
  if (!options_.checks || touch.block == nullptr || touch.block->arena == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (touch.block->is_free || touch.block->written.contains(touch.region)) return;
  note_fault(FaultKind::UninitialisedRead, std::string(at.work) + " reads " + text_of(touch) +
                                               ", of which bytes were never written; fill it first");
  touch.block->written.add(touch.region);  // told once
}

void Machine::note_written(const Touch& touch) {
  if (!options_.checks || touch.block == nullptr) return;
  const std::lock_guard lock(mutex_);
  touch.block->written.add(touch.region);
}

FaultLog& Machine::faults() {
  const std::lock_guard lock(mutex_);
  drain_host_accesses();
  return faults_;
}

void Machine::clear_faults() {
  const std::lock_guard lock(mutex_);
  drain_host_accesses();
  faults_.clear();
  raised_ = 0;
}

void Machine::note_fault(FaultKind kind, std::string text) { faults_.add(kind, std::move(text)); }

void Machine::raise_faults(const char* work) {
  if (!options_.throw_on_fault) return;
  const std::lock_guard lock(mutex_);
  const auto all = faults_.faults();
  const size_t first = std::exchange(raised_, all.size());
  if (first >= all.size()) return;
  fail(ErrorKind::Usage, work, std::string(to_string(all[first].kind)) + ": " + all[first].text);
}

}  // namespace zero::virtual_device

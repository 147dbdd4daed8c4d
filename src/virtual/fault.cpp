#include "virtual/fault.h"

#include <utility>

namespace zero::virtual_device {

std::string_view to_string(FaultKind kind) {
  switch (kind) {
    case FaultKind::UnorderedAccess:
      return "unordered access";
    case FaultKind::EarlyReuse:
      return "early reuse";
    case FaultKind::UninitialisedRead:
      return "uninitialised read";
    case FaultKind::UseAfterFree:
      return "use after free";
    case FaultKind::HostRead:
      return "host read of device memory";
    case FaultKind::HostWrite:
      return "host write of device memory";
    case FaultKind::PinnedRead:
      return "early host read of pinned memory";
    case FaultKind::PinnedWrite:
      return "early host write of pinned memory";
    case FaultKind::UnpinnedCopy:
      return "asynchronous copy of unpinned memory";
    case FaultKind::HostOnlyOperator:
      return "operator for CPUs only";
  }
  return "unknown fault";
}

void FaultLog::add(FaultKind kind, std::string text) {
  const std::lock_guard lock(mutex_);
  ++count_;
  if (faults_.size() < most_) faults_.push_back({kind, std::move(text)});
}

std::vector<Fault> FaultLog::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

size_t FaultLog::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void FaultLog::clear() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
  count_ = 0;
}

}  // namespace zero::virtual_device

#pragma once
// What a program did that a real accelerator would not have forgiven.

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace zero::virtual_device {

enum class FaultKind {
  UnorderedAccess,  // two accesses of the same bytes, one a write, that no event or wait orders
  EarlyReuse,       // a freed block's next owner and its last user are not ordered: record_stream is missing
  UninitialisedRead,  // an operator reads bytes that nothing has written since they were allocated
  UseAfterFree,       // an operator uses memory that was given back
  HostRead,           // host code reads device memory
  HostWrite,          // host code writes device memory
  PinnedRead,         // host code reads pinned memory that a queued copy will write
  PinnedWrite,        // host code writes pinned memory that a queued copy will read or write
  UnpinnedCopy,       // a copy asked for as asynchronous of memory that is not pinned
  HostOnlyOperator,   // an operator that has a kernel for CPUs only, which reads its pointers there
};

/// "unordered access", "early reuse", ...
std::string_view to_string(FaultKind kind);

struct Fault {
  FaultKind kind;
  std::string text;  // one line: the operators, the tensor, what to do
};

/// Keeps the first `most` faults and counts all. Thread safe.
class FaultLog {
 public:
  explicit FaultLog(size_t most = 1000) : most_(most) {}
  void add(FaultKind kind, std::string text);
  std::vector<Fault> faults() const;
  size_t count() const;
  void clear();

 private:
  const size_t most_;
  mutable std::mutex mutex_;
  std::vector<Fault> faults_;
  size_t count_ = 0;
};

}  // namespace zero::virtual_device

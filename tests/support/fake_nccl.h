#pragma once
// A libnccl for processes of one host without a GPU: the functions that the transport calls, over memory that
// the ranks share. It notes every call. A collective is done when its function returns; it adds up from the
// last rank to the first in the type that it is given, so that nobody takes its sums for exact ones.

#include <cstddef>

extern "C" {

/// How it reaches memory that the host may not touch, and whom it tells what it touches.
struct FakeNcclHooks {
  void* (*bytes_at)(const void* device);  // where those bytes lie for the host; null: there
  void (*touches)(const void* device, size_t bytes, bool is_write, void* stream,
                  const char* function);  // may be null
};
using FakeNcclHook = void(FakeNcclHooks hooks);        // fake_nccl_hook
using FakeNcclLog = const char*();                     // fake_nccl_log: a line a call since the last time
using FakeNcclFail = void(const char* function, int);  // fake_nccl_fail: its next call does nothing else
using FakeNcclAsyncError = void(int result);           // fake_nccl_async_error: of every communicator
}

#pragma once
// What a file on a disk is read and written through: transfers that are started and come back later. The seam
// at which tests make a disk fail.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace zero::tiers {

/// Used by one thread at a time.
class BlockDevice {
 public:
  struct Transfer {
    bool writes = false;
    int64_t offset = 0;           // in the file
    std::byte* memory = nullptr;  // until it has come back
    int64_t bytes = 0;
    uint64_t tag = 0;  // the caller's
  };
  struct Result {
    uint64_t tag = 0;
    int64_t bytes = 0;  // transferred, fewer than asked for perhaps; or -errno
  };

  virtual ~BlockDevice() = default;
  /// At most the depth that it was made with may be under way.
  virtual void start(const Transfer& transfer) = 0;
  /// One that has come back; waits for it. Some must be under way.
  virtual Result wait() = 0;
  /// How it transfers: "io_uring", or "2 threads (io_uring: Operation not permitted)".
  virtual std::string description() const = 0;
};

/// Makes other devices than open_block_device(), for tests of what failing ones do.
class BlockDevices {
 public:
  virtual ~BlockDevices() = default;
  /// Of an open file, which outlives it. Thread safe.
  virtual std::unique_ptr<BlockDevice> open(int descriptor) const = 0;
};

/// Of an open file: by io_uring where the kernel lets this process have one, else by `threads` threads that
/// call pread and pwrite. The descriptor must outlive it.
std::unique_ptr<BlockDevice> open_block_device(int descriptor, int depth, int threads);

/// The threads, whatever the kernel says. `reason`: why not io_uring, for description().
std::unique_ptr<BlockDevice> open_thread_device(int descriptor, int threads, const std::string& reason);

}  // namespace zero::tiers

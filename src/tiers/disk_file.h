#pragma once
// A rank's file of states on a disk: preallocated, without a name, past the system's cache. Reads and writes
// go on by themselves (a thread keeps the device busy) and are checked when they are waited for.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tiers/block_device.h"

namespace zero::tiers {

/// Of memory, offsets and sizes.
inline constexpr int64_t kAlignment = 4096;

struct DiskFileOptions {
  std::filesystem::path directory;
  int64_t bytes = 0;                       // of the file
  int64_t block_bytes = int64_t{1} << 20;  // of a transfer and of a checksum; a multiple of kAlignment
  int queue_depth = 16;                    // transfers under way
  int threads = 2;                         // without io_uring
  std::string key = "offload.path";        // what names the directory, for errors
  // Instead of open_block_device(): for tests.
  std::function<std::unique_ptr<BlockDevice>(int descriptor)> open_device = {};
};

/// What went through a file.
struct DiskFileStats {
  int64_t read_bytes = 0, written_bytes = 0;
  double busy_s = 0;  // time in which something was under way
};

/// Thread safe. Transfers of one extent happen in the order of their calls, those of different ones in any.
/// All memory is aligned to kAlignment and must live until the transfer is waited for.
class DiskFile {
 public:
  /// A part that is read and written as a whole.
  using Extent = int;
  using Ticket = uint64_t;
  static constexpr Ticket kNone = 0;  // nothing to wait for

  /// Throws Config, naming the key, for a directory that is none or in memory (tmpfs); Io where it is not
  /// writable or has too little space. The file has all its blocks of the disk when this returns.
  explicit DiskFile(DiskFileOptions options);
  /// Waits for what is under way.
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  /// Sets so many bytes more of the disk aside. Throws Io where it has too little space.
  void extend(int64_t bytes);
  /// Room for so many bytes, rounded up to kAlignment. Until it is written it reads as zeros, without a
  /// transfer. Throws Internal where the file has no more.
  Extent add_extent(int64_t bytes);
  /// Rounded up: what memory() of a transfer needs.
  int64_t extent_bytes(Extent extent) const;

  /// Start a transfer of a whole extent, once those of `after` are over, whose errors become its own. `name`:
  /// of what it holds ("unit 3, exp_avg"), for errors.
  Ticket read(Extent extent, std::byte* memory, const std::string& name, std::vector<Ticket> after = {});
  Ticket write(Extent extent, std::byte* memory, const std::string& name, std::vector<Ticket> after = {});
  /// Until a transfer is over; once for each. Throws Io (what, where, errno) or, for bytes that are not those
  /// that were written, Corrupt. Nothing for kNone.
  void wait(Ticket ticket);
  /// Whether wait() would return, or throw, at once.
  bool is_over(Ticket ticket) const;

  DiskFileStats stats() const;
  /// How it transfers: "io_uring, past the system's cache".
  std::string description() const;

 private:
  struct Block {
    int64_t offset = 0, bytes = 0;
    uint64_t checksum = 0;
  };
  struct Room {
    std::vector<Block> blocks;
    int64_t bytes = 0;
    bool written = false;  // on the disk are values
    Ticket last = kNone;   // the last request for it
  };
  struct Request {
    Extent extent = 0;
    std::byte* memory = nullptr;
    std::string name;
    std::vector<Ticket> after;
    bool writes = false, started = false, over = false;
    size_t blocks_left = 0;
    std::exception_ptr failure = nullptr;
  };
  /// A block under way: what is left of it.
  struct Moving {
    Ticket ticket = 0;
    size_t block = 0;
    int64_t moved = 0;
    int retries = 0;
  };

  void open();
  void set_aside(int64_t begin, int64_t bytes);
  Ticket add_request(Request request);
  // Of the thread.
  void run();
  bool may_start(const Request& request) const;
  bool start_next();
  void start_block(uint64_t tag);
  void take_result(const BlockDevice::Result& result);
  void finish_block(const Moving& moving, std::exception_ptr failure);
  void finish_request(Request& request);
  std::exception_ptr error_of(const Moving& moving, int error, const std::string& problem) const;

  DiskFileOptions options_;
  int descriptor_ = -1;
  bool is_direct_ = false;
  std::unique_ptr<BlockDevice> device_;

  mutable std::mutex mutex_;
  std::condition_variable to_do_, over_;
  std::vector<std::unique_ptr<Room>> rooms_;
  int64_t used_bytes_ = 0;
  std::map<Ticket, Request> requests_;
  std::deque<Ticket> pending_;  // not started, in order
  Ticket last_ = kNone;
  std::deque<Moving> ready_;  // blocks of started requests
  std::map<uint64_t, Moving> moving_;
  uint64_t last_tag_ = 0;
  std::exception_ptr broken_;  // of the device itself
  DiskFileStats stats_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace zero::tiers

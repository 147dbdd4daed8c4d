#pragma once
// The memory of one virtual device. Each byte has two addresses: a *name*, at which nobody may read or write,
// and which tensors hold; and a *work* address, which kernels use. Host code that follows a tensor's pointer
// faults, on any thread, and nothing has to be switched while a kernel runs.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "virtual/accesses.h"
#include "virtual/region.h"

namespace zero::virtual_device {

class Machine;
class Arena;

/// A part of an arena, taken or free; or an allocation of pinned memory, which has no arena.
struct Block {
  static constexpr int kNoStream = -1;

  Machine* machine = nullptr;
  Arena* arena = nullptr;
  size_t offset = 0, bytes = 0;  // within the arena
  size_t asked_bytes = 0;
  int stream = kNoStream;  // the clock whose work may use it without further ado
  bool is_free = true;
  const std::string* purpose = nullptr;
  bool has_values = true;       // false: memory of a machine with shapes only, which nobody reads or writes
  uint64_t owner = 0;           // a number of each taking
  AccessHistory accesses;       // outlives the owner: the next one must come after them
  ByteSet written;              // since it was taken
  std::set<int> other_streams;  // clocks that record_stream named
  char* host = nullptr;         // of pinned memory
};

/// Not thread safe.
class Arena {
 public:
  /// Throws Error(Io) where the system has no addresses for `capacity_bytes`.
  Arena(Machine& machine, int device, size_t capacity_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The smallest free block of the stream's pool, else of memory that belongs to no stream; null where there
  /// is none. The block keeps the accesses of its former owners.
  Block* take(size_t bytes, int stream, const std::string& purpose);
  /// Counts it as no longer used, though nobody may have it yet.
  void release(Block& block);
  /// Makes a released block free for its stream.
  void give(Block& block);
  /// Makes all free memory that of no stream, without a past: the device must be idle.
  void forget_streams();
  /// Another purpose for a block that is taken.
  void relabel(Block& block, const std::string& purpose);

  bool has_name(const void* address) const { return address >= names_ && address < names_ + capacity_; }
  bool has_work(const void* address) const { return address >= work_ && address < work_ + capacity_; }
  char* name_of(const Block& block) const { return names_ + block.offset; }
  char* work_at(const void* name) const { return work_ + (static_cast<const char*>(name) - names_); }
  /// The block that a name or work address lies in.
  Block& block_at(const void* address);

  /// Lets the host use the pages that a block's names lie in, until close_names(). Both are no more than a
  /// system call.
  void open_names(const Block& block) const;
  void close_names() const;

  int device() const { return device_; }
  size_t capacity_bytes() const { return capacity_; }
  size_t used_bytes() const { return used_; }
  size_t peak_bytes() const { return peak_; }
  size_t largest_free_bytes() const;
  const std::map<std::string, size_t>& used_by_purpose() const { return by_purpose_; }
  /// At the moment of the peak.
  const std::map<std::string, size_t>& peak_by_purpose() const { return peak_by_purpose_; }
  void reset_peak();

 private:
  void merge_with_neighbours(std::map<size_t, std::unique_ptr<Block>>::iterator at);
  bool absorb_next(std::map<size_t, std::unique_ptr<Block>>::iterator at);
  void split(Block& block, size_t bytes);
  void add_used(Block& block);

  Machine& machine_;
  const int device_;
  const size_t capacity_;
  char *names_ = nullptr, *work_ = nullptr;
  size_t used_ = 0, peak_ = 0;
  std::map<std::string, size_t> by_purpose_, peak_by_purpose_;
  std::map<size_t, std::unique_ptr<Block>> blocks_;  // by offset; together they are the whole arena
  std::set<std::tuple<int, size_t, size_t>> free_;   // (stream, bytes, offset)
};

}  // namespace zero::virtual_device

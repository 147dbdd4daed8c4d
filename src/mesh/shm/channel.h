#pragma once
// The operations of one group over shared memory. A rank posts where its bytes are, and every reader takes
// them from there itself, so no rank has to be inside a call for others to go on. Bytes in private memory are
// copied into shared memory first; bytes that lie in it already (input_tensor(), common_tensor()) are read in
// place.

#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "mesh/shm/board.h"
#include "mesh/shm/host_memory.h"
#include "mesh/transport.h"

namespace zero::detail::shm {

/// Messages of others that an operation of this rank is made of.
struct Reading {
  struct From {
    int rank;
    uint64_t message_bytes;   // what its message must have
    uint64_t offset;          // of the bytes for this rank
    char* copy_to = nullptr;  // null: the bytes are summed once all have come
    uint64_t copy_bytes = 0;
    const char* data = nullptr;  // once it has come
    uint64_t number = 0;         // of the post
  };
  int tag = 0;
  std::vector<From> from;
  int missing = 0;
  std::vector<ReducePart> sums;       // of the bytes that are not copied, in rank order
  const char* own = nullptr;          // what this rank itself adds
  at::ScalarType dtype = at::kFloat;  // of what is summed
  std::vector<at::Tensor> keep;
  std::exception_ptr error;
};

/// A message of this rank, until all that it is for have read it.
struct Telling {
  Message message;
  char* copy = nullptr;  // shared copy of the caller's bytes; null: they are read in place
  bool in_place = false;
  at::Tensor keep;  // what is read in place
  uint64_t number = 0;
  bool posted = false, read = false;
};

/// All operations of a group on this rank. Thread safe.
class Conversation {
 public:
  Conversation(std::shared_ptr<HostMemory> memory, Board board, int rank, int ranks);
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  /// Posts bytes to one rank or (to = -1) to all.
  std::shared_ptr<Telling> tell(const at::Tensor& bytes, int to, int tag);
  /// Begins an operation's reading; whatever has come already is read at once.
  void begin(std::shared_ptr<Reading> reading);
  /// Ends a reading that nobody waits for any more.
  void forget(const std::shared_ptr<Reading>& reading);

  /// Waits for `reading` (or null), then until all have read `telling` (or null), doing meanwhile what the
  /// other operations need. Throws TransferError.
  void wait(const Reading* reading, const Telling* telling, std::chrono::milliseconds timeout,
            const std::atomic<bool>& aborted);
  void wake() { board_.wake_self(); }
  /// Seconds spent on moving and adding up bytes inside wait().
  double worked_s();

  const std::shared_ptr<HostMemory>& memory() const { return memory_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

 private:
  struct Arrived {
    Message message;
    uint64_t number;
  };
  /// Everything that can be done without waiting.
  void progress();
  void pull_posts();
  void read_arrived(Reading& reading);
  void take(Reading& reading, Reading::From& from, const Arrived& arrived);
  void add_up(Reading& reading);
  void post_and_release();
  bool finished(const Reading* reading, const Telling* telling) const;
  std::vector<int> awaited(const Reading* reading, const Telling* telling) const;
  void require_alive(const std::vector<int>& ranks);

  std::mutex mutex_;
  std::shared_ptr<HostMemory> memory_;
  Board board_;
  const int rank_, ranks_;
  std::vector<int> processes_;                                       // a pidfd of every other rank
  std::vector<uint64_t> pulled_;                                     // posts looked at, by rank
  std::vector<std::unordered_map<int, std::deque<Arrived>>> inbox_;  // by rank, by tag
  std::list<std::shared_ptr<Reading>> readings_;                     // with something missing, oldest first
  std::deque<std::shared_ptr<Telling>> tellings_;  // not posted or not read by all, oldest first
  uint64_t posts_ = 0;
  double worked_s_ = 0;
};

std::unique_ptr<Channel> make_channel(std::shared_ptr<HostMemory> memory, Board board, int rank, int ranks);

}  // namespace zero::detail::shm

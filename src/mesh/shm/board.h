#pragma once
// Where the ranks of a group tell each other what they have to read: one ring of posts a rank, in a segment
// that all map. Only atomics and a futex; no thread of its own.
//
// A rank writes its ring alone. The others pull posts in order, and set their bit in `read` once they are
// done with the bytes that a post points to. A post's place in the ring is used again when all that it is
// addressed to have read it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "mesh/shm/segment.h"

namespace zero::detail::shm {

inline constexpr int kMostRanks = 64;  // bits of Post::read
inline constexpr uint64_t kRing = 256;

/// "There are `bytes` bytes for you at `where`."
struct Message {
  int32_t tag = 0;
  int32_t to = -1;  // group rank, or -1: every other rank
  uint64_t bytes = 0;
  Location where;
};

class Board {
 public:
  /// Rank 0 creates, the others open what it created.
  static Board create(int ranks);
  static Board open(const SegmentName& name, int rank, int ranks);

  SegmentName name() const { return segment_.name(); }

  /// Announces this rank and its first segment; attached() is true once all have done so.
  void attach(const SegmentName& first_segment);
  bool attached() const;
  int32_t pid(int rank) const;
  SegmentName first_segment(int rank) const;

  /// Posts as number `number` (0, 1, ... without gaps). False if that place in the ring is still being read.
  bool post(uint64_t number, const Message& message);
  /// The ranks that have not read post `number`, as bits. 0 means its bytes may be changed.
  uint64_t unread(uint64_t number) const;

  enum class Pull { Nothing, Message, NotForUs };
  /// Looks at post `number` of `rank`: not there yet, there, or of no interest to this rank.
  Pull pull(int rank, uint64_t number, Message& message) const;
  void mark_read(int rank, uint64_t number);

  /// While it lives, posts and mark_reads of the others ring this rank's bell. Begin the nap first, look
  /// whether there is something to do, then sleep: no ring in between is missed.
  class Nap {
   public:
    explicit Nap(Board& board);
    ~Nap();
    Nap(const Nap&) = delete;
    Nap& operator=(const Nap&) = delete;
    void sleep(std::chrono::microseconds longest);

   private:
    Board& board_;
    uint32_t bell_;
  };
  /// Ends this rank's nap, from any thread.
  void wake_self();

 private:
  struct alignas(64) Post {
    std::atomic<uint64_t> number;  // + 1; 0: never used
    std::atomic<uint64_t> read;
    Message message;
  };
  struct alignas(64) Rank {
    std::atomic<uint32_t> bell;
    std::atomic<uint32_t> asleep;
    std::atomic<int32_t> pid;
    SegmentName first_segment;
    Post ring[kRing];
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

  Board(Segment segment, int rank, int ranks);
  Rank& at(int rank) const { return reinterpret_cast<Rank*>(segment_.data())[rank]; }
  uint64_t readers(const Message& message) const;
  void ring(int rank);

  Segment segment_;
  int rank_, ranks_;
};

}  // namespace zero::detail::shm

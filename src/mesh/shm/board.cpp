#include "mesh/shm/board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <new>
#include <utility>

#include "zero/error.h"

namespace zero::detail::shm {
namespace {

constexpr uint64_t kBeingWritten = uint64_t{1} << 63;  // beside the number that it is going to have

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout = nullptr) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

Board::Board(Segment segment, int rank, int ranks)
    : segment_(std::move(segment)), rank_(rank), ranks_(ranks) {}

// Fresh memory of the kernel is zero, which is the empty board.
Board Board::create(int ranks) { return {Segment::create(sizeof(Rank) * ranks), 0, ranks}; }

Board Board::open(const SegmentName& name, int rank, int ranks) {
  Segment segment = Segment::open(name);
  require(segment.bytes() >= sizeof(Rank) * ranks, ErrorKind::Comm, "shared memory",
          "the board of the group is too small", "do all ranks run the same program?");
  return {std::move(segment), rank, ranks};
}

void Board::attach(const SegmentName& first_segment) {
  at(rank_).first_segment = first_segment;
  at(rank_).pid.store(getpid(), std::memory_order_release);
  for (int rank = 0; rank < ranks_; ++rank) ring(rank);
}

bool Board::attached() const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (at(rank).pid.load(std::memory_order_acquire) == 0) return false;
  return true;
}

int32_t Board::pid(int rank) const { return at(rank).pid.load(std::memory_order_acquire); }
SegmentName Board::first_segment(int rank) const { return at(rank).first_segment; }

uint64_t Board::readers(const Message& message) const {
  if (message.to >= 0) return uint64_t{1} << message.to;
  const uint64_t all = ranks_ == 64 ? ~uint64_t{0} : (uint64_t{1} << ranks_) - 1;
  return all & ~(uint64_t{1} << rank_);
}

bool Board::post(uint64_t number, const Message& message) {
  if (number >= kRing && unread(number - kRing) != 0) return false;
  Post& post = at(rank_).ring[number % kRing];
  post.number.store((number + 1) | kBeingWritten, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  post.message = message;
  post.read.store(0, std::memory_order_relaxed);
  post.number.store(number + 1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the post before the look at who sleeps
  for (int rank = 0; rank < ranks_; ++rank)
    if (rank != rank_ && (message.to < 0 || message.to == rank)) ring(rank);
  return true;
}

uint64_t Board::unread(uint64_t number) const {
  const Post& post = at(rank_).ring[number % kRing];
  if (post.number.load(std::memory_order_relaxed) != number + 1) return 0;  // its place has been used again
  return readers(post.message) & ~post.read.load(std::memory_order_acquire);
}

// A place in the ring is used again once those it was meant for have read it, which may be before this rank
// looks.
Board::Pull Board::pull(int rank, uint64_t number, Message& message) const {
  const Post& post = at(rank).ring[number % kRing];
  const uint64_t before = post.number.load(std::memory_order_acquire);
  if ((before & ~kBeingWritten) > number + 1) return Pull::NotForUs;
  if (before != number + 1) return Pull::Nothing;
  message = post.message;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (post.number.load(std::memory_order_relaxed) != before) return Pull::NotForUs;
  return message.to < 0 || message.to == rank_ ? Pull::Message : Pull::NotForUs;
}

void Board::mark_read(int rank, uint64_t number) {
  at(rank).ring[number % kRing].read.fetch_or(uint64_t{1} << rank_, std::memory_order_acq_rel);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring(rank);
}

// A rank that is awake looks by itself; only a sleeper costs a system call.
void Board::ring(int rank) {
  Rank& other = at(rank);
  if (other.asleep.load(std::memory_order_seq_cst) == 0) return;
  other.bell.fetch_add(1, std::memory_order_seq_cst);
  futex(other.bell, FUTEX_WAKE, INT32_MAX);
}

Board::Nap::Nap(Board& board) : board_(board) {
  Rank& self = board_.at(board_.rank_);
  self.asleep.fetch_add(1, std::memory_order_seq_cst);
  bell_ = self.bell.load(std::memory_order_seq_cst);
}

Board::Nap::~Nap() { board_.at(board_.rank_).asleep.fetch_sub(1, std::memory_order_seq_cst); }

void Board::Nap::sleep(std::chrono::microseconds longest) {
  const timespec time{longest.count() / 1000000, longest.count() % 1000000 * 1000};
  futex(board_.at(board_.rank_).bell, FUTEX_WAIT, bell_, &time);
}

void Board::wake_self() {
  at(rank_).bell.fetch_add(1, std::memory_order_seq_cst);
  futex(at(rank_).bell, FUTEX_WAKE, INT32_MAX);
}

}  // namespace zero::detail::shm

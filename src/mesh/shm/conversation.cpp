#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "compute/copy.h"
#include "mesh/ordered_sum.h"
#include "mesh/shm/channel.h"
#include "zero/error.h"

namespace zero::detail::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// How a wait passes: some looks at the memory, turns for other threads for as long as waking up costs, then
// sleep. A sleeper is woken by the first post; it wakes by itself to look whether the others still live.
constexpr int kLooks = 200;
constexpr microseconds kTurns{150}, kLongestSleep{50'000};
// Who sleeps longer than this did not run: with Ctrl-Z all ranks of a host are stopped, and the time until
// they are continued is not one in which others were late.
constexpr microseconds kDidNotRun{1'000'000};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Conversation::Conversation(std::shared_ptr<HostMemory> memory, Board board, int rank, int ranks)
    : memory_(std::move(memory)), board_(std::move(board)), rank_(rank), ranks_(ranks) {
  pulled_.resize(ranks);
  inbox_.resize(ranks);
  for (int other = 0; other < ranks; ++other) {
    int process = -1;
    if (other != rank) {
      memory_->resolve({board_.first_segment(other), 0}, 1);
      process = static_cast<int>(syscall(SYS_pidfd_open, board_.pid(other), 0));  // -1 on kernels before 5.3
    }
    processes_.push_back(process);
  }
}

Conversation::~Conversation() {
  for (int process : processes_)
    if (process >= 0) close(process);
  for (const auto& telling : tellings_)
    if (telling->copy != nullptr) memory_->release(telling->copy);
}

double Conversation::worked_s() {
  const std::lock_guard lock(mutex_);
  return worked_s_;
}

std::shared_ptr<Telling> Conversation::tell(const at::Tensor& bytes, int to, int tag) {
  auto telling = std::make_shared<Telling>();
  Message& message = telling->message;
  message = {tag, to, bytes.nbytes(), {}};
  if (auto where = memory_->locate(bytes.data_ptr(), bytes.nbytes())) {
    message.where = *where;
    telling->in_place = true;
    telling->keep = bytes;
  } else {
    telling->copy = memory_->allocate(bytes.nbytes());
    std::memcpy(telling->copy, bytes.data_ptr(), bytes.nbytes());
    message.where = memory_->locate(telling->copy, bytes.nbytes()).value();
  }
  const std::lock_guard lock(mutex_);
  tellings_.push_back(telling);
  post_and_release();
  return telling;
}

void Conversation::begin(std::shared_ptr<Reading> reading) {
  const std::lock_guard lock(mutex_);
  reading->missing = static_cast<int>(reading->from.size());
  readings_.push_back(std::move(reading));
  progress();
}

void Conversation::forget(const std::shared_ptr<Reading>& reading) {
  const std::lock_guard lock(mutex_);
  readings_.remove(reading);
  if (reading->missing > 0 || !reading->sums.empty())
    for (const Reading::From& from : reading->from)
      if (from.data != nullptr && from.copy_to == nullptr) board_.mark_read(from.rank, from.number);
}

void Conversation::progress() {
  pull_posts();
  for (auto reading = readings_.begin(); reading != readings_.end();) {
    read_arrived(**reading);
    const bool over = (*reading)->missing == 0 || (*reading)->error;
    reading = over ? readings_.erase(reading) : std::next(reading);
  }
  post_and_release();
}

void Conversation::pull_posts() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    uint64_t& next = pulled_[rank];
    Message message;
    for (;; ++next) {
      const Board::Pull found = board_.pull(rank, next, message);
      if (found == Board::Pull::Nothing) break;
      if (found == Board::Pull::Message) inbox_[rank][message.tag].push_back({message, next});
    }
  }
}

void Conversation::read_arrived(Reading& reading) {
  try {
    for (Reading::From& from : reading.from) {
      if (from.data != nullptr) continue;
      auto& box = inbox_[from.rank];
      auto found = box.find(reading.tag);
      if (found == box.end()) continue;
      const Arrived arrived = found->second.front();
      found->second.pop_front();
      if (found->second.empty()) box.erase(found);
      take(reading, from, arrived);
    }
    if (reading.missing == 0 && !reading.sums.empty()) add_up(reading);
  } catch (...) {
    reading.error = std::current_exception();
  }
}

void Conversation::take(Reading& reading, Reading::From& from, const Arrived& arrived) {
  if (arrived.message.bytes != from.message_bytes)
    throw TransferError("it sent " + std::to_string(arrived.message.bytes) + " bytes where " +
                            std::to_string(from.message_bytes) + " were expected",
                        {from.rank}, false);
  try {
    from.data = memory_->resolve(arrived.message.where, arrived.message.bytes) + from.offset;
  } catch (const Error& error) {
    throw TransferError(error.what(), {from.rank}, false);
  }
  from.number = arrived.number;
  reading.missing--;
  if (from.copy_to == nullptr) return;
  // What both ranks own together is where it belongs.
  if (from.copy_to != from.data) {
    const auto began = Clock::now();
    copy_bytes(from.copy_to, from.data, from.copy_bytes);
    worked_s_ += std::chrono::duration<double>(Clock::now() - began).count();
  }
  board_.mark_read(from.rank, from.number);
}

void Conversation::add_up(Reading& reading) {
  std::vector<const void*> rows(ranks_, reading.own);
  for (const Reading::From& from : reading.from) rows[from.rank] = from.data;
  const auto began = Clock::now();
  ordered_sums(reading.sums, rows, reading.dtype, rank_);
  worked_s_ += std::chrono::duration<double>(Clock::now() - began).count();
  reading.sums.clear();
  for (const Reading::From& from : reading.from) board_.mark_read(from.rank, from.number);
}

// Posts go out in order; one that finds no place waits, and those behind it.
void Conversation::post_and_release() {
  for (const auto& telling : tellings_) {
    if (telling->posted) continue;
    if (!board_.post(posts_, telling->message)) break;
    telling->number = posts_++;
    telling->posted = true;
  }
  for (auto entry = tellings_.begin(); entry != tellings_.end();) {
    Telling& telling = **entry;
    if (!telling.posted || board_.unread(telling.number) != 0) {
      ++entry;
      continue;
    }
    telling.read = true;
    telling.keep.reset();
    if (telling.copy != nullptr) memory_->release(std::exchange(telling.copy, nullptr));
    entry = tellings_.erase(entry);
  }
}

bool Conversation::finished(const Reading* reading, const Telling* telling) const {
  if (reading != nullptr && reading->error) std::rethrow_exception(reading->error);
  return (reading == nullptr || reading->missing == 0) && (telling == nullptr || telling->read);
}

std::vector<int> Conversation::awaited(const Reading* reading, const Telling* telling) const {
  std::vector<int> ranks;
  if (reading != nullptr)
    for (const Reading::From& from : reading->from)
      if (from.data == nullptr) ranks.push_back(from.rank);
  if (!ranks.empty() || telling == nullptr || !telling->posted) return ranks;
  const uint64_t unread = board_.unread(telling->number);
  for (int rank = 0; rank < ranks_; ++rank)
    if ((unread >> rank & 1) != 0) ranks.push_back(rank);
  return ranks;
}

// A process that has ended does nothing any more, but what it had posted counts: the caller looks for that
// first.
void Conversation::require_alive(const std::vector<int>& ranks) {
  for (int rank : ranks) {
    pollfd watch{processes_[rank], POLLIN, 0};
    if (watch.fd < 0 || poll(&watch, 1, 0) <= 0) continue;
    progress();
    throw TransferError("its process has ended", {rank}, false);
  }
}

void Conversation::wait(const Reading* reading, const Telling* telling, milliseconds timeout,
                        const std::atomic<bool>& aborted) {
  const auto began = Clock::now();
  auto deadline = began + timeout;
  for (int round = 0;; ++round) {
    std::optional<Board::Nap> nap;
    if (round >= kLooks && Clock::now() - began >= kTurns) nap.emplace(board_);
    if (aborted) throw TransferError("aborted", {}, false, true);
    {
      const std::lock_guard lock(mutex_);
      progress();
      if (finished(reading, telling)) return;
    }
    if (round < kLooks) {
      pause();
    } else if (!nap) {
      sched_yield();
    } else {
      const auto lay_down = Clock::now();
      nap->sleep(kLongestSleep);
      if (const auto slept = Clock::now() - lay_down; slept > kDidNotRun) deadline += slept;
      const std::lock_guard lock(mutex_);
      progress();
      if (finished(reading, telling)) return;
      const std::vector<int> peers = awaited(reading, telling);
      if (Clock::now() >= deadline) throw TransferError("timed out", peers, true);
      require_alive(peers);
    }
  }
}

}  // namespace zero::detail::shm

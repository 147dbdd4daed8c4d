#pragma once
// One NCCL communicator and the stream that its kernels run on, in the order in which they were issued.
//
// Order is kept by events only: a kernel begins after what the current stream was given before it, and who
// waits for it makes the current stream wait. No thread blocks; a kernel that never ends, because a rank is
// gone, is found by watch().

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "mesh/nccl/library.h"
#include "mesh/transport.h"

namespace zero::detail::nccl {

class Communicator {
 public:
  using Clock = std::chrono::steady_clock;
  using Enqueue = std::function<Result(Comm comm, Stream stream)>;

  /// Meets the other members at keys of `store`; blocks until all came. Throws c10 errors where they do not
  /// come in time, TransferError where NCCL fails.
  Communicator(const Library& library, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
               c10::Device device, std::chrono::milliseconds timeout);
  /// Gives what was issued a few seconds to end, then ends it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// The event after what `enqueue` put on the stream. Throws TransferError naming the NCCL function `name`.
  std::shared_ptr<c10::Event> run(const char* name, const Enqueue& enqueue);
  /// Throws TransferError once it has failed or was aborted.
  void check() const;
  /// Makes the device's current stream wait.
  void make_stream_wait(const c10::Event& event) const;

  /// Ends all that is under way; what is issued or waited for afterwards throws. Thread safe.
  enum class Cause { Nccl, Timeout, Asked };
  void abort(const std::string& why, Cause cause) noexcept;
  /// Aborts where NCCL tells of an error or the oldest kernel is overdue at `now`. Thread safe.
  void watch(Clock::time_point now);

 private:
  struct Running {
    const char* name;
    Clock::time_point since;
    std::shared_ptr<c10::Event> end;
  };
  struct Failure {
    std::string text;
    Cause cause;
  };

  void connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);
  void forget_ended();
  void check_locked() const;
  std::string text_of(const char* name, Result result) const;

  const Library library_;
  const c10::Device device_;
  const c10::Stream stream_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  Comm comm_ = nullptr;
  std::deque<Running> running_;
  std::optional<Failure> failure_;
};

}  // namespace zero::detail::nccl

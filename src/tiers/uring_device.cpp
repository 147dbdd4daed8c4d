// Transfers by io_uring (Axboe, "Efficient IO with io_uring"), through liburing.
#include "tiers/block_device.h"

#ifdef ZERO_HAVE_URING

#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "zero/error.h"

namespace zero::tiers {
namespace {

class UringDevice : public BlockDevice {
 public:
  UringDevice(int descriptor, io_uring ring) : descriptor_(descriptor), ring_(ring) {}
  ~UringDevice() override { io_uring_queue_exit(&ring_); }

  void start(const Transfer& transfer) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    require(entry != nullptr, ErrorKind::Internal, "io_uring", "more transfers than its depth");
    const auto bytes = static_cast<unsigned>(transfer.bytes);
    const auto offset = static_cast<uint64_t>(transfer.offset);
    if (transfer.writes)
      io_uring_prep_write(entry, descriptor_, transfer.memory, bytes, offset);
    else
      io_uring_prep_read(entry, descriptor_, transfer.memory, bytes, offset);
    entry->user_data = transfer.tag;
    // What the kernel has no room for stays in the queue, for the next call.
    int submitted = 0;
    do submitted = io_uring_submit(&ring_);
    while (submitted == -EINTR);
    require(submitted >= 0 || submitted == -EAGAIN || submitted == -EBUSY, ErrorKind::Io, "io_uring",
            "cannot start a transfer: " + std::generic_category().message(-submitted));
  }

  Result wait() override {
    io_uring_cqe* entry = nullptr;
    int failed = 0;
    do failed = io_uring_submit_and_wait(&ring_, 1);
    while (failed == -EINTR || failed == -EAGAIN || failed == -EBUSY);
    if (failed >= 0) failed = io_uring_wait_cqe(&ring_, &entry);
    while (failed == -EINTR) failed = io_uring_wait_cqe(&ring_, &entry);
    require(failed >= 0, ErrorKind::Io, "io_uring",
            "cannot wait for a transfer: " + std::generic_category().message(-failed));
    const Result result{.tag = entry->user_data, .bytes = entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return result;
  }

  std::string description() const override { return "io_uring"; }

 private:
  const int descriptor_;
  io_uring ring_;
};

}  // namespace

std::unique_ptr<BlockDevice> open_block_device(int descriptor, int depth, int threads) {
  io_uring ring{};
  const int failed = io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0);
  if (failed == 0) return std::make_unique<UringDevice>(descriptor, ring);
  return open_thread_device(descriptor, threads, "io_uring: " + std::generic_category().message(-failed));
}

}  // namespace zero::tiers

#else

namespace zero::tiers {

std::unique_ptr<BlockDevice> open_block_device(int descriptor, int /*depth*/, int threads) {
  return open_thread_device(descriptor, threads, "built without io_uring");
}

}  // namespace zero::tiers

#endif

// A sweep through states on a disk reads and writes beside the work on them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "support/disk_directory.h"
#include "tiers/disk_states.h"

namespace zero::tiers {
namespace {

/// How many transfers are under way, from their start until their end is known. They take a while.
struct UnderWay {
  std::atomic<int> reads = 0, writes = 0;
  std::atomic<bool> both = false;  // at some moment
};

class CountedDevice : public BlockDevice {
 public:
  CountedDevice(int descriptor, UnderWay* seen)
      : real_(open_thread_device(descriptor, 2, "counted")), seen_(seen) {}
  void start(const Transfer& transfer) override {
    started_.push_back({transfer.tag, transfer.writes});
    ++(transfer.writes ? seen_->writes : seen_->reads);
    if (seen_->reads > 0 && seen_->writes > 0) seen_->both = true;
    real_->start(transfer);
  }
  Result wait() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const Result result = real_->wait();
    const auto ended = std::find_if(started_.begin(), started_.end(),
                                    [&](const auto& one) { return one.first == result.tag; });
    --(ended->second ? seen_->writes : seen_->reads);
    started_.erase(ended);
    return result;
  }
  std::string description() const override { return real_->description(); }

 private:
  std::unique_ptr<BlockDevice> real_;
  UnderWay* seen_;
  std::vector<std::pair<uint64_t, bool>> started_;  // the tags of what is under way, and whether it writes
};

// Piece k + 1 is read and piece k - 1 written while piece k is in use.
TEST(DiskStates, ASweepReadsWritesAndComputesAtOnce) {
  const testing::DiskDirectory directory;
  for (const bool at_once : {true, false}) {
    constexpr int64_t kPiece = 8192, kPieces = 12;
    UnderWay seen;
    DiskFileOptions options{
        .directory = directory.path(), .bytes = 1 << 20, .block_bytes = 8192, .queue_depth = 4, .threads = 2};
    options.open_device = [&](int descriptor) { return std::make_unique<CountedDevice>(descriptor, &seen); };
    DiskStates states(std::make_unique<DiskFile>(options),
                      {.piece_numel = kPiece, .buffers = 3, .read_ahead = at_once, .write_behind = at_once});
    const auto a = states.add("a", kPiece * kPieces, 1);
    const std::vector<std::byte> ones(kPiece * kPieces, std::byte{1});
    states.write(a, 0, kPiece * kPieces, ones.data());
    states.flush();
    seen.both = false;
    std::vector<DiskStates::Piece> pieces;
    for (int64_t i = 0; i < kPieces; ++i) pieces.push_back({{a}, i});
    states.announce(pieces);
    int reads_in_use = 0, writes_in_use = 0;  // pieces during whose use others were read, written
    for (int64_t i = 0; i < kPieces; ++i) {
      states.take();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      reads_in_use += seen.reads > 0;
      writes_in_use += seen.writes > 0;
      states.give_back(true);
    }
    states.flush();
    EXPECT_EQ(seen.both, at_once);
    EXPECT_EQ(reads_in_use > 0, at_once);
    EXPECT_EQ(writes_in_use > 0, at_once);
  }
}

}  // namespace
}  // namespace zero::tiers

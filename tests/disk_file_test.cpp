// A rank's file on a disk: what comes back is what was written, and whatever fails is a named error.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/faulty_disks.h"
#include "tiers/disk_states.h"
#include "zero/error.h"

namespace zero::tiers {
namespace {

namespace fs = std::filesystem;
using testing::DiskDirectory;
using testing::FaultyDisks;
using testing::TemporaryDirectory;
using Faults = testing::DiskFaults;

constexpr int64_t kBlock = 8192;

/// A place of memory as transfers want it.
struct Aligned {
  explicit Aligned(int64_t bytes)
      : size(static_cast<size_t>(bytes)),
        memory(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size)), &std::free) {}
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < size; ++i) memory.get()[i] = static_cast<std::byte>(random());
  }
  bool operator==(const Aligned& other) const {
    return std::equal(memory.get(), memory.get() + size, other.memory.get(), other.memory.get() + other.size);
  }
  std::byte* get() const { return memory.get(); }
  size_t size;
  std::unique_ptr<std::byte, decltype(&std::free)> memory;
};

DiskFileOptions options_in(const TemporaryDirectory& directory, int64_t bytes = 1 << 20) {
  return {
      .directory = directory.path(), .bytes = bytes, .block_bytes = kBlock, .queue_depth = 4, .threads = 2};
}

DiskFileOptions faulty(const TemporaryDirectory& directory, Faults* faults) {
  DiskFileOptions options = options_in(directory);
  options.open_device = [faults](int descriptor) { return FaultyDisks(*faults).open(descriptor); };
  return options;
}

/// Writes an extent of five blocks and a half and reads it again.
void write_and_read(DiskFile& file) {
  const auto extent = file.add_extent(5 * kBlock + kBlock / 2);
  Aligned out(file.extent_bytes(extent)), in(file.extent_bytes(extent));
  out.fill(1);
  file.wait(file.write(extent, out.get(), "unit 3, exp_avg"));
  file.wait(file.read(extent, in.get(), "unit 3, exp_avg"));
  EXPECT_TRUE(in == out);
}

TEST(DiskFile, GivesBackWhatWasWritten) {
  const DiskDirectory directory;
  for (const bool threads : {false, true}) {
    DiskFileOptions options = options_in(directory);
    if (threads)
      options.open_device = [](int descriptor) { return open_thread_device(descriptor, 2, "as asked"); };
    DiskFile file(options);
    EXPECT_EQ(file.description().starts_with("2 threads (as asked)"), threads) << file.description();
    write_and_read(file);
    EXPECT_EQ(file.stats().read_bytes, 5 * kBlock + kBlock / 2);
    EXPECT_EQ(file.stats().written_bytes, 5 * kBlock + kBlock / 2);
  }
}

TEST(DiskFile, HasNoNameAndIsThereFromTheStart) {
  const DiskDirectory directory;
  const auto free = [&] { return fs::space(directory.path()).free; };
  const auto before = free();
  const DiskFile file(options_in(directory, 64 << 20));
  EXPECT_TRUE(fs::is_empty(directory.path()));
  EXPECT_LT(free() + (32 << 20), before);
}

TEST(DiskFile, IsItsUsersAloneAndGoesPastThePageCache) {
  const DiskDirectory directory;
  constexpr int64_t kBytes = 8 << 20;
  DiskFileOptions options = options_in(directory, kBytes);
  struct stat file = {};
  int flags = 0, of_descriptor = 0;
  options.open_device = [&](int descriptor) {
    EXPECT_EQ(::fstat(descriptor, &file), 0);
    flags = ::fcntl(descriptor, F_GETFL);
    of_descriptor = ::fcntl(descriptor, F_GETFD);
    return open_thread_device(descriptor, 2, "as asked");
  };
  const mode_t before = ::umask(0);
  const DiskFile opened(options);
  ::umask(before);
  EXPECT_EQ(file.st_mode & 07777, 0600U);
  EXPECT_EQ(file.st_nlink, 0U);
  EXPECT_GE(file.st_blocks * 512, kBytes);
  EXPECT_TRUE(of_descriptor & FD_CLOEXEC);
  const int direct =
      ::open((directory.path() / "direct").c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
  EXPECT_EQ((flags & O_DIRECT) != 0, direct >= 0);
  if (direct >= 0) ::close(direct);
}

TEST(DiskFile, WhatWasNeverWrittenIsZerosWithoutATransfer) {
  const DiskDirectory directory;
  DiskFile file(options_in(directory));
  const auto extent = file.add_extent(3 * kBlock);
  Aligned memory(3 * kBlock);
  memory.fill(2);
  file.wait(file.read(extent, memory.get(), "unit 0, master"));
  EXPECT_TRUE(
      std::all_of(memory.get(), memory.get() + memory.size, [](std::byte b) { return b == std::byte{}; }));
  EXPECT_EQ(file.stats().read_bytes, 0);
}

TEST(DiskFile, KeepsTheOrderOfOneExtentAndOfWhatComesAfter) {
  const DiskDirectory directory;
  DiskFile file(options_in(directory));
  const auto first = file.add_extent(4 * kBlock), second = file.add_extent(4 * kBlock);
  Aligned one(4 * kBlock), two(4 * kBlock), read(4 * kBlock);
  for (unsigned round = 0; round < 20; ++round) {
    one.fill(round);
    two.fill(round + 100);
    const auto a = file.write(first, one.get(), "a");
    const auto b = file.write(first, two.get(), "b");
    const auto c = file.read(first, read.get(), "c");
    // The memory of c is used again once c is over.
    const auto d = file.write(second, read.get(), "d", {c});
    for (const auto ticket : {d, c, b, a}) file.wait(ticket);
    EXPECT_TRUE(read == two);
  }
}

TEST(DiskFile, GoesOnAfterShortAndInterruptedTransfers) {
  const DiskDirectory directory;
  Faults faults{.most_bytes = kAlignment, .interrupted = 3, .try_again = 3};
  DiskFile file(faulty(directory, &faults));
  write_and_read(file);
  Faults odd{.most_bytes = kAlignment + 512};
  DiskFile again(faulty(directory, &odd));
  write_and_read(again);
}

TEST(DiskFile, NamesUnitTierOffsetAndErrnoOfWhatFails) {
  const DiskDirectory directory;
  struct Case {
    int error;
    bool of_writes;
    const char* says;
  };
  for (const Case& one :
       {Case{EIO, false, "unit 3, exp_avg: cannot read 8192 bytes at "},
        Case{EIO, true, "unit 3, exp_avg: cannot write 8192 bytes at "}, Case{ENOSPC, true, "(errno 28)"}}) {
    Faults faults{.error = one.error, .error_from = 2, .of_writes = one.of_writes};
    DiskFile file(faulty(directory, &faults));
    EXPECT_ERROR(write_and_read(file), Io, one.says);
    EXPECT_ERROR(write_and_read(file), Io, "of the disk tier in " + directory.path().string());
  }
}

TEST(DiskFile, ARetryHasAnEnd) {
  const DiskDirectory directory;
  Faults faults{.try_again = INT32_MAX};
  DiskFile file(faulty(directory, &faults));
  EXPECT_ERROR(write_and_read(file), Io, "errno 11");
}

TEST(DiskFile, NoticesAFlippedBit) {
  const DiskDirectory directory;
  for (const int read : {0, 3, 5}) {
    Faults faults{.flipped_read = read};
    DiskFile file(faulty(directory, &faults));
    EXPECT_ERROR(write_and_read(file), Corrupt, "unit 3, exp_avg");
  }
}

TEST(DiskFile, WhatComesAfterAFailureFailsToo) {
  const DiskDirectory directory;
  Faults faults{.error = EIO, .error_from = 0, .of_writes = true};
  DiskFile file(faulty(directory, &faults));
  const auto first = file.add_extent(kBlock), second = file.add_extent(kBlock);
  Aligned memory(kBlock);
  memory.fill(1);
  const auto write = file.write(first, memory.get(), "unit 1, master");
  const auto read = file.read(second, memory.get(), "unit 2, master", {write});
  EXPECT_ERROR(file.wait(read), Io, "unit 1, master");
  EXPECT_ERROR(file.wait(write), Io, "unit 1, master");
}

TEST(DiskFile, RefusesDirectoriesThatWillNotDo) {
  const DiskDirectory directory;
  DiskFileOptions options = options_in(directory);
  options.directory = directory.path() / "missing";
  EXPECT_ERROR(std::make_unique<DiskFile>(options), Config, "offload.path: " + options.directory.string());
  options.directory = "/dev/shm";
  EXPECT_ERROR(std::make_unique<DiskFile>(options), Config, "is in memory (tmpfs)");
  options = options_in(directory, int64_t{1} << 50);
  EXPECT_ERROR(std::make_unique<DiskFile>(options), Io, "this rank's states take 1125899906842624");
  options = options_in(directory);
  options.directory = directory.write("file", "x");
  EXPECT_ERROR(std::make_unique<DiskFile>(options), Io, "takes no file");
}

TEST(DiskStates, ASweepGoesThroughARingOfBuffers) {
  const DiskDirectory directory;
  for (const bool behind : {true, false}) {
    constexpr int64_t kNumel = 10500, kPiece = 1024, kPieces = 11;
    auto file = std::make_unique<DiskFile>(options_in(directory));
    DiskStates states(std::move(file),
                      {.piece_numel = kPiece, .buffers = 3, .read_ahead = behind, .write_behind = behind});
    const auto a = states.add("a", kNumel, 4), b = states.add("b", kNumel, 2);
    std::vector<DiskStates::Piece> pieces;
    for (int64_t i = 0; i < kPieces; ++i) pieces.push_back({{a, b}, i});
    for (int32_t sweep = 0; sweep < 4; ++sweep) {
      states.announce(pieces);
      for (int64_t i = 0; i < kPieces; ++i) {
        ASSERT_TRUE(states.is_next(pieces[static_cast<size_t>(i)]));
        const auto memory = states.take();
        auto* const wide = reinterpret_cast<int32_t*>(memory[0]);
        auto* const narrow = reinterpret_cast<int16_t*>(memory[1]);
        for (int64_t k = 0; k < std::min(kPiece, kNumel - i * kPiece); ++k) {
          ASSERT_EQ(wide[k], sweep == 0 ? 0 : sweep * 100000 + i * kPiece + k);
          ASSERT_EQ(narrow[k], sweep * 3);
          wide[k] = static_cast<int32_t>((sweep + 1) * 100000 + i * kPiece + k);
          narrow[k] = static_cast<int16_t>(sweep * 3 + 3);
        }
        states.give_back(true);
      }
      EXPECT_EQ(states.ring_bytes(), 3 * (kAlignment + kAlignment)) << "each state begins aligned";
    }
    std::vector<int32_t> all(kNumel);
    states.read(a, 0, kNumel, reinterpret_cast<std::byte*>(all.data()));
    for (int64_t k = 0; k < kNumel; ++k) ASSERT_EQ(all[static_cast<size_t>(k)], 400000 + k);
  }
}

TEST(DiskStates, RangesAndSweepsSeeEachOther) {
  const DiskDirectory directory;
  DiskStates states(std::make_unique<DiskFile>(options_in(directory)), {.piece_numel = 1024, .buffers = 2});
  const auto a = states.add("a", 3000, 1);
  const std::vector<std::byte> ones(1500, std::byte{1});
  states.write(a, 1000, 1500, ones.data());
  std::vector<DiskStates::Piece> pieces{{{a}, 0}, {{a}, 1}, {{a}, 2}};
  states.announce(pieces);
  auto memory = states.take();
  EXPECT_EQ(memory[0][999], std::byte{0});
  EXPECT_EQ(memory[0][1000], std::byte{1});
  memory[0][5] = std::byte{7};
  states.give_back(true);
  std::byte five{};
  states.read(a, 5, 1, &five);  // in the middle of a sweep: the rest of it is forgotten
  EXPECT_EQ(five, std::byte{7});
  EXPECT_FALSE(states.is_next(pieces[1]));
  states.announce(pieces);
  EXPECT_EQ(states.take()[0][5], std::byte{7});
  states.give_back(false);
}

TEST(DiskStates, WhatIsGivenBackProvisionallyCountsOnceItIsAccepted) {
  const DiskDirectory directory;
  DiskStates states(std::make_unique<DiskFile>(options_in(directory)), {.piece_numel = 4096, .buffers = 2});
  const auto a = states.add("a", 2 * 4096, 1, /*parts=*/1, /*two_places=*/true);
  const std::vector<std::byte> ones(2 * 4096, std::byte{1});
  states.write(a, 0, 2 * 4096, ones.data());
  const std::vector<DiskStates::Piece> pieces{{{a}, 0}, {{a}, 1}};
  const auto values = [&] {
    std::byte first{}, second{};
    states.read(a, 10, 1, &first);
    states.read(a, 4096 + 10, 1, &second);
    return std::pair{static_cast<int>(first), static_cast<int>(second)};
  };
  const auto sweep = [&](int value) {
    states.announce(pieces);
    for (int i = 0; i < 2; ++i) {
      states.take()[0][10] = static_cast<std::byte>(value);
      states.give_back_provisionally();
    }
  };
  sweep(2);
  EXPECT_EQ(values(), std::pair(1, 1));
  states.forget_provisional();
  EXPECT_EQ(values(), std::pair(1, 1));
  EXPECT_ERROR(states.accept(pieces[0]), Internal, "not given back provisionally");
  sweep(3);
  states.accept(pieces[1]);
  EXPECT_EQ(values(), std::pair(1, 3));
  states.forget_provisional();
  sweep(4);
  for (const DiskStates::Piece& piece : pieces) states.accept(piece);
  EXPECT_EQ(values(), std::pair(4, 4));
}

TEST(DiskStates, APieceIsThereOnceItIsRead) {
  const DiskDirectory directory;
  DiskStates states(std::make_unique<DiskFile>(options_in(directory)), {.piece_numel = 4096, .buffers = 2});
  const auto a = states.add("a", 4096, 1);
  const std::vector<std::byte> ones(4096, std::byte{1});
  states.write(a, 0, 4096, ones.data());
  EXPECT_FALSE(states.is_there());
  states.announce({{{a}, 0}});
  while (!states.is_there()) std::this_thread::yield();
  EXPECT_EQ(states.take()[0][7], std::byte{1});
  states.give_back(false);
  EXPECT_FALSE(states.is_there());
}

TEST(DiskStates, AWriteBehindThatFailsIsAnErrorLater) {
  const DiskDirectory directory;
  Faults faults{.error = EIO, .error_from = 1, .of_writes = true};
  DiskStates states(std::make_unique<DiskFile>(faulty(directory, &faults)),
                    {.piece_numel = 1024, .buffers = 2});
  const auto a = states.add("unit 0, exp_avg", 8192, 4);
  std::vector<DiskStates::Piece> pieces;
  for (int64_t i = 0; i < 8; ++i) pieces.push_back({{a}, i});
  states.announce(pieces);
  const auto sweep = [&] {
    for (int i = 0; i < 8; ++i) {
      states.take();
      states.give_back(true);
    }
    states.flush();
  };
  EXPECT_ERROR(sweep(), Io, "unit 0, exp_avg: cannot write");
}

}  // namespace
}  // namespace zero::tiers

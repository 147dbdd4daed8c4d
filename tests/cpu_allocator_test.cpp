// Zeros in memory that tensors had before, and in memory that none had.
#include "zero/cpu_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "compute/zeros.h"

namespace {
constexpr int64_t kNumel = 64 << 20;

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Zeros, AreZerosWhereATensorWasBefore) {
  zero::use_training_allocator();
  const at::Tensor keeps_the_range = at::empty({1 << 20});
  for (int64_t numel : {int64_t{1}, int64_t{1000}, int64_t{100000}, int64_t{5} << 20}) {
    at::Tensor before = at::full({numel}, 7.0F);
    const void* memory = before.data_ptr();
    before.reset();
    const at::Tensor zeros = zero::detail::zeros(numel, at::kFloat);
    if (numel > 100000) {
      EXPECT_EQ(zeros.data_ptr(), memory) << "nothing was used again";
    }
    EXPECT_EQ(zeros.sizes(), at::IntArrayRef({numel}));
    EXPECT_EQ(zeros.ne(0).sum().item<int64_t>(), 0) << numel;
  }
  EXPECT_EQ(zero::detail::zeros(0, at::kFloat).numel(), 0);
  EXPECT_EQ(zero::detail::zeros(3, at::kShort).scalar_type(), at::kShort);
}

TEST(Zeros, TakeNoPagesBeforeTheyAreUsed) {
  zero::use_training_allocator();
  const at::Tensor small = at::empty({1 << 20});
  const int64_t before = resident_bytes();
  const at::Tensor zeros = zero::detail::zeros(kNumel, at::kFloat);
  EXPECT_LT(resident_bytes() - before, kNumel * 4 / 10);
  EXPECT_EQ(zeros.sum().item<float>(), 0);
  zeros.fill_(1);
  EXPECT_GT(resident_bytes() - before, kNumel * 4 / 10 * 9);
}

// A step's tensors may all be gone before the next one begins.
TEST(FreedMemory, IsKeptUntilItIsReleased) {
  zero::use_training_allocator();
  constexpr int64_t kBytes = kNumel * 4;
  zero::release_free_memory();
  const int64_t before = resident_bytes();
  { const at::Tensor first = at::ones({kNumel}), second = at::ones({kNumel}); }
  EXPECT_GT(resident_bytes() - before, kBytes / 10 * 19);
  at::Tensor first = at::empty({kNumel});
  const at::Tensor second = at::full({kNumel}, 3.0F);
  first.reset();
  zero::release_free_memory();
  EXPECT_LT(resident_bytes() - before, kBytes / 10 * 11) << "the gap before a tensor is released, too";
  EXPECT_EQ(second.ne(3).sum().item<int64_t>(), 0);
  const at::Tensor gap = zero::detail::zeros(kNumel, at::kFloat), end = zero::detail::zeros(1000, at::kFloat);
  EXPECT_EQ(gap.ne(0).sum().item<int64_t>() + end.ne(0).sum().item<int64_t>(), 0);
}

// Beyond the last tensor the kernel's zeros are counted on.
TEST(FreedMemory, LeavesZerosWhereNoTensorIs) {
  zero::use_training_allocator();
  for (const int64_t numel : {int64_t{9000}, int64_t{1} << 20, int64_t{3} << 20}) {
    at::Tensor ones = at::ones({numel});
    ones.reset();
    zero::release_free_memory();
    const at::Tensor zeros = zero::detail::zeros(numel + (1 << 20), at::kFloat);
    EXPECT_EQ(zeros.ne(0).sum().item<int64_t>(), 0) << numel;
  }
}

TEST(Zeros, AreOrdinaryWithoutTheAllocator) {
  const at::Tensor zeros = zero::detail::zeros(1000, at::kBFloat16);
  EXPECT_EQ(zeros.scalar_type(), at::kBFloat16);
  EXPECT_EQ(zeros.ne(0).sum().item<int64_t>(), 0);
}
// Pages that are locked in memory stay, with what tensors wrote.
TEST(FreedMemory, ThatTheKernelDoesNotTakeIsNotTakenForZeros) {
  zero::use_training_allocator();
  zero::release_free_memory();
  constexpr int64_t kBytes = int64_t{6} << 20;
  at::Tensor ones = at::ones({kBytes / 4});
  void* const data = ones.data_ptr();
  if (mlock(data, kBytes) != 0) GTEST_SKIP() << "no memory may be locked";
  ones.reset();
  zero::release_free_memory();
  const at::Tensor zeros = zero::detail::zeros(kBytes / 4, at::kFloat);
  EXPECT_EQ(zeros.data_ptr(), data) << "nothing was used again";
  EXPECT_EQ(zeros.ne(0).sum().item<int64_t>(), 0);
  munlock(data, kBytes);
}

size_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;)
    if (word == key) {
      size_t kib = 0;
      in >> kib;
      return kib << 10;
    }
  return 0;
}

// In a process of its own: trains nothing, but fills tensors under a limit, of both kinds of memory.
void fill_under(int limit, size_t more_bytes, const std::string& used) {
  const rlimit limits{status_bytes(used) + more_bytes, RLIM_INFINITY};
  if (setrlimit(static_cast<__rlimit_resource>(limit), &limits) != 0) _exit(2);
  try {
    zero::use_training_allocator();
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 8; ++i) tensors.push_back(at::full({4 << 20}, i));
    for (int i = 0; i < 8; ++i)
      if (!tensors[static_cast<size_t>(i)].eq(i).all().item<bool>()) _exit(3);
    tensors.clear();
    if (zero::detail::zeros(4 << 20, at::kFloat).ne(0).any().item<bool>()) _exit(4);
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
    _exit(1);
  }
  _exit(0);
}

// `ulimit -v`: with little left, no range is worth having.
TEST(TrainingAllocator, WorksUnderALimitOnAddresses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const size_t more : {size_t{400} << 20, size_t{2} << 30, size_t{40} << 30})
    EXPECT_EXIT(fill_under(RLIMIT_AS, more, "VmSize:"), ::testing::ExitedWithCode(0), "") << more;
}

// Where the kernel promises no more than it has (vm.overcommit_memory=2), what may be written counts; so it
// does under this limit.
TEST(TrainingAllocator, CountsOnlyWhatItOpens) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fill_under(RLIMIT_DATA, size_t{400} << 20, "VmData:"), ::testing::ExitedWithCode(0), "");
}

// In a process of its own: two tensors find memory at the C library's, as the range opens 64 MiB at a time;
// once it may open, a third has its place at the range's beginning.
void fill_where_the_range_stays_closed() {
  constexpr int64_t kBytes = int64_t{16} << 20;
  const at::Tensor statics = at::full({1}, 1.0F);
  rlimit limits{status_bytes("VmData:") + (size_t{56} << 20), RLIM_INFINITY};
  if (setrlimit(RLIMIT_DATA, &limits) != 0 || !zero::use_training_allocator()) _exit(2);
  try {
    const at::Tensor ones = at::full({kBytes / 4}, 1.0F), zeros = zero::detail::zeros(kBytes / 4, at::kFloat);
    if (ones.ne(1).any().item<bool>() || zeros.ne(0).any().item<bool>()) _exit(3);
    if (zero::cpu_allocator_stats().used_bytes != 0) _exit(4);
    limits.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_DATA, &limits);
    const at::Tensor more = at::full({kBytes / 4}, 2.0F);
    if (zero::cpu_allocator_stats().span_bytes != kBytes) _exit(5);
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
    _exit(1);
  }
  _exit(0);
}

TEST(TrainingAllocator, LeavesToTheCLibraryWhatFindsNoPlace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fill_where_the_range_stays_closed(), ::testing::ExitedWithCode(0), "");
}

// The map of the range is locked by other threads, whenever a process forks.
TEST(TrainingAllocator, SurvivesAForkBesideOtherThreads) {
  zero::use_training_allocator();
  // The first tensor of a process and of a thread makes statics of LibTorch, which has no handlers for a
  // fork.
  static_cast<void>(at::empty({1 << 16}));
  std::atomic<bool> started = false, done = false;
  std::thread other([&] {
    while (!done) {
      static_cast<void>(at::empty({1 << 16}));
      started = true;
    }
  });
  while (!started) std::this_thread::yield();
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);
      static_cast<void>(at::empty({1 << 16}));
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "child " << i;
    if (status != 0) break;
  }
  done = true;
  other.join();
}

}  // namespace

// Pages that move between tensors and a range of addresses of their own.
#include "compute/lent_pages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "zero/cpu_allocator.h"

namespace {
using zero::detail::kLentPageBytes;
using zero::detail::LentPages;

int64_t resident_mib() {
  std::ifstream in("/proc/self/statm");
  int64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE) >> 20;
}

at::Tensor written(int64_t mib, char value) {
  return at::full({mib << 20}, static_cast<int>(value), at::kChar);
}

/// Tensors of 5 MiB with gaps of 5 MiB between them, all of it resident.
std::vector<at::Tensor> with_gaps(int count) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 2 * count; ++i) tensors.push_back(written(5, 1));
  for (int i = 0; i < count; ++i) tensors[static_cast<size_t>(2 * i)].reset();
  return tensors;
}

// Linux before 6.17 unmaps the place that pages shall go to before it finds that they belong to several
// mappings; here another thread maps something there at once.
bool acts_like_linux_before_6_17 = false;
std::vector<const char*> of_others;

class LentPagesTest : public ::testing::Test {
 protected:
  void SetUp() override { zero::use_training_allocator(); }
};

TEST_F(LentPagesTest, TakeWhatTensorsLeftAndGiveItBack) {
  const std::vector<at::Tensor> tensors = with_gaps(12);
  const int64_t before = resident_mib(), span = zero::cpu_allocator_stats().span_bytes;
  const int64_t used = zero::cpu_allocator_stats().used_bytes;
  // No gap is as large, and every gap has one whole page or two.
  constexpr size_t kBytes = 10 * kLentPageBytes;
  LentPages pages(kBytes);
  for (int round = 0; round < 3; ++round) {
    pages.hold(0, kBytes);
    std::memset(pages.data(), 7, kBytes);
    EXPECT_EQ(zero::cpu_allocator_stats().used_bytes - used, static_cast<int64_t>(kBytes));
    EXPECT_EQ(zero::cpu_allocator_stats().span_bytes, span) << "there were gaps";
    EXPECT_LE(resident_mib(), before + 3) << "pages were made anew";
    EXPECT_EQ(std::count(pages.data(), pages.data() + kBytes, 7), static_cast<std::ptrdiff_t>(kBytes));
    pages.release();
    EXPECT_EQ(zero::cpu_allocator_stats().used_bytes, used);
    EXPECT_GE(resident_mib(), before - 1) << "pages were dropped";
  }
  for (const at::Tensor& tensor : tensors) EXPECT_TRUE(!tensor.defined() || tensor.eq(1).all().item<bool>());
}

TEST_F(LentPagesTest, KeepWhatIsHeldAndGrowWhereThereAreNoGaps) {
  const at::Tensor wall = written(3, 1);
  LentPages pages(9 * kLentPageBytes + 5);
  pages.hold(100, 200);
  pages.data()[150] = 3;
  pages.hold(kLentPageBytes * 4 - 1, kLentPageBytes * 4 + 1);  // two pages
  pages.data()[kLentPageBytes * 4] = 4;
  pages.hold(0, 9 * kLentPageBytes + 5);
  std::memset(pages.data() + kLentPageBytes, 9, kLentPageBytes);
  EXPECT_EQ(pages.data()[150], 3);
  EXPECT_EQ(pages.data()[kLentPageBytes * 4], 4);
  EXPECT_THROW(pages.hold(0, 10 * kLentPageBytes + 1), std::out_of_range);
  pages.hold(17, 17);
  EXPECT_TRUE(wall.eq(1).all().item<bool>());
}

TEST_F(LentPagesTest, ComeBackWhenTheirOwnerGoes) {
  const at::Tensor wall = written(3, 1);
  const int64_t used = zero::cpu_allocator_stats().used_bytes;
  {
    LentPages pages(3 * kLentPageBytes);
    pages.hold(0, 1);
    pages.data()[0] = 1;
    EXPECT_GT(zero::cpu_allocator_stats().used_bytes, used);
  }
  EXPECT_EQ(zero::cpu_allocator_stats().used_bytes, used);
}

TEST_F(LentPagesTest, LeaveMappingsOfOthersAlone) {
  const std::vector<at::Tensor> tensors = with_gaps(6);
  LentPages pages(6 * kLentPageBytes);
  acts_like_linux_before_6_17 = true;
  for (int round = 0; round < 3; ++round) {
    pages.hold(0, 6 * kLentPageBytes);
    std::memset(pages.data(), 7, 6 * kLentPageBytes);
    pages.release();
  }
  acts_like_linux_before_6_17 = false;
  EXPECT_FALSE(of_others.empty()) << "nothing was refused";
  for (const char* theirs : of_others)
    EXPECT_EQ(*theirs, 0x5a) << "a mapping that is not ours was taken away";
  EXPECT_TRUE(written(5, 2).eq(2).all().item<bool>());
  for (const at::Tensor& tensor : tensors) EXPECT_TRUE(!tensor.defined() || tensor.eq(1).all().item<bool>());
}

TEST_F(LentPagesTest, AreNewWhereTheRangeIsUsedUp) {
  const auto use_up = [] {
    std::vector<at::Tensor> all;
    const int64_t gib = (int64_t{2} * sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)) >> 30;
    // Addresses only: nothing is written.
    for (int64_t i = 0; i < gib; ++i) all.push_back(at::empty({int64_t{1} << 30}, at::kByte));
    for (int i = 0; i < 1 << 10; ++i) all.push_back(at::empty({int64_t{1} << 20}, at::kByte));
    LentPages pages(2 * kLentPageBytes);
    pages.hold(0, 2 * kLentPageBytes);
    std::memset(pages.data(), 7, 2 * kLentPageBytes);
    pages.release();
    _exit(0);
  };
  EXPECT_EXIT(use_up(), ::testing::ExitedWithCode(0), "");
}

// As on a kernel that moves no pages.
void refuse_mremap() {
  const sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(steps), const_cast<sock_filter*>(steps)};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST_F(LentPagesTest, AreMadeAnewWhereTheKernelMovesNone) {
  const auto lend = [] {
    const std::vector<at::Tensor> tensors = with_gaps(6);
    const int64_t before = resident_mib();
    refuse_mremap();
    LentPages pages(4 * kLentPageBytes);
    for (int round = 0; round < 3; ++round) {
      pages.hold(0, 4 * kLentPageBytes);
      std::memset(pages.data(), 7, 4 * kLentPageBytes);
      EXPECT_LE(resident_mib(), before + 3);
      pages.release();
      EXPECT_LE(resident_mib(), before - 4) << "dropped on both sides";
    }
    const at::Tensor after = written(5, 2);
    EXPECT_TRUE(after.eq(2).all().item<bool>());
    for (const at::Tensor& tensor : tensors)
      EXPECT_TRUE(!tensor.defined() || tensor.eq(1).all().item<bool>());
    _exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(lend(), ::testing::ExitedWithCode(0), "");
}

TEST_F(LentPagesTest, MayNotBeReadWhenNothingIsHeld) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        zero::use_training_allocator();
        LentPages pages(2 * kLentPageBytes);
        pages.hold(0, kLentPageBytes);
        pages.data()[0] = 1;
        pages.release();
        _exit(*static_cast<volatile char*>(pages.data()) == 0 ? 0 : 1);
      },
      "");
}
}  // namespace

// In place of the C library's.
extern "C" void* mremap(void* from, size_t bytes, size_t new_bytes, int flags, ...) noexcept {
  va_list arguments;
  va_start(arguments, flags);
  void* const to = (flags & MREMAP_FIXED) != 0 ? va_arg(arguments, void*) : nullptr;
  va_end(arguments);
  if (acts_like_linux_before_6_17 && to != nullptr && bytes > kLentPageBytes) {
    munmap(to, bytes);
    void* theirs =
        mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (theirs == to) {
      *static_cast<char*>(theirs) = 0x5a;
      of_others.push_back(static_cast<const char*>(theirs));
    }
    errno = EFAULT;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mremap, from, bytes, new_bytes, flags, to));
}

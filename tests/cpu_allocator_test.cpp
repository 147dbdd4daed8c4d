// Zeros in memory that tensors had before, and in memory that none had.
#include "zero/cpu_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

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
}  // namespace

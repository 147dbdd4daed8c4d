// main() of every test program that uses LibTorch.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  // Before any operator: several ranks share few cores, and forked ranks must not inherit a thread pool.
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

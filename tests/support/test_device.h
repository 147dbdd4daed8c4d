#pragma once
// Where the tests of a program run: on the CPU, or, if the program can and ZERO_TEST_DEVICE names it, on a
// device of each rank. Tests that are to run there too put their tensors on test_device().

#include <c10/core/Device.h>

#include <functional>

#include "support/ranks.h"

namespace zero::testing {

struct TestPlace {
  c10::Device device = c10::kCPU;
  std::function<void(RankOptions&)> prepare = {};        // options of ranks there
  std::function<void()> begin_rank = {}, end_rank = {};  // around the body, in each rank
};
inline TestPlace& test_place() {
  static TestPlace place;
  return place;
}

inline c10::Device test_device() { return test_place().device; }

}  // namespace zero::testing

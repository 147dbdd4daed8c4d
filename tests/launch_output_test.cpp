// Merging several ranks' lines into one stream.
#include <gtest/gtest.h>

#include "launch/output.h"

namespace zero::detail {
namespace {

using std::chrono::milliseconds;

class Merge : public ::testing::Test {
 protected:
  LineMerger merger{3, milliseconds(100)};
  LineMerger::Time start = LineMerger::Time() + std::chrono::hours(1);
  LineMerger::Time at(int ms) { return start + milliseconds(ms); }
};

TEST_F(Merge, SameLineFromAllIsPrintedOnce) {
  merger.add(0, "hello\n", at(0));
  merger.add(1, "hel", at(10));
  EXPECT_EQ(merger.take(at(10)), "");
  merger.add(1, "lo\n", at(20));
  merger.add(2, "hello\r\n", at(30));
  EXPECT_EQ(merger.take(at(30)), "hello\n");
  EXPECT_EQ(merger.next(), LineMerger::Time::max());
}

TEST_F(Merge, DifferentLinesAreMarkedAfterTheWindow) {
  merger.add(1, "one\n", at(0));
  merger.add(0, "zero\n", at(10));
  EXPECT_EQ(merger.take(at(50)), "");
  EXPECT_EQ(merger.next(), at(100));
  EXPECT_EQ(merger.take(at(100)), "[rank 1] one\n");
  EXPECT_EQ(merger.take(at(110)), "[rank 0] zero\n");
}

TEST_F(Merge, ExtraLineOfOneRankDoesNotUndoTheOthers) {
  merger.add(0, "warning\nstep 1\n", at(0));
  merger.add(1, "step 1\n", at(5));
  merger.add(2, "step 1\n", at(5));
  EXPECT_EQ(merger.take(at(100)), "[rank 0] warning\nstep 1\n");
}

TEST_F(Merge, ClosedRankIsNotWaitedFor) {
  merger.add(0, "bye", at(0));
  merger.close(0, at(1));
  merger.close(1, at(1));
  EXPECT_EQ(merger.take(at(1)), "[rank 0] bye\n");
  merger.add(2, "last\n", at(2));
  EXPECT_EQ(merger.take(at(2)), "[rank 2] last\n");
}

TEST_F(Merge, EverythingIsPrintedOnceAllAreClosed) {
  for (int rank : {0, 1, 2}) merger.add(rank, "rank " + std::to_string(rank) + "\nsame\n", at(0));
  for (int rank : {0, 1, 2}) merger.close(rank, at(1));
  EXPECT_EQ(merger.take(at(1)), "[rank 0] rank 0\n[rank 1] rank 1\n[rank 2] rank 2\nsame\n");
}

TEST_F(Merge, ProgressOfRankZeroPassesAndOthersIsDropped) {
  merger.add(0, "10%\r", at(0));
  EXPECT_EQ(merger.take(at(0)), "10%\r");
  merger.add(1, "10%\r20%\r", at(0));
  merger.add(0, "\r20%", at(0));
  merger.add(0, "\r30%", at(0));
  EXPECT_EQ(merger.take(at(0)), "\r20%\r");
  merger.add(1, "done\n", at(0));
  EXPECT_EQ(merger.take(at(100)), "[rank 1] done\n");
}

TEST_F(Merge, FloodAndEndlessLinesAreBounded) {
  for (int i = 0; i < 10000; ++i) merger.add(0, "line\n", at(0));
  EXPECT_GT(merger.take(at(0)).size(), 50000u);
  merger.add(1, std::string(200000, 'x'), at(0));
  EXPECT_GT(merger.take(at(200)).size(), 130000u);
}

TEST_F(Merge, LastLinesAreKept) {
  for (int i = 0; i < 8; ++i) merger.add(2, "error " + std::to_string(i) + "\n\n", at(0));
  ASSERT_EQ(merger.last_lines(2).size(), 5u);
  EXPECT_EQ(merger.last_lines(2).back(), "error 7");
}

}  // namespace
}  // namespace zero::detail

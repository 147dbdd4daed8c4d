// Saves that the system interrupts: whatever fails, what was published stays whole and nothing half is left.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/failing_calls.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

using namespace testing;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// Saves step `next` over an existing step 1 with one failing call. False once the save no longer comes that
// far.
bool try_with_failure(Call call, int countdown, int error, int64_t next) {
  TemporaryDirectory directory;
  save(directory.path(), 1, sample_tensors(1), 2);
  std::string problem;
  fail_call(call, countdown, error);
  try {
    save(directory.path(), next, sample_tensors(2), 2, 1);
  } catch (const Error& caught) {
    problem = caught.what();
    EXPECT_EQ(caught.kind(), ErrorKind::Io) << problem;
  }
  bool failed = has_failed();
  fail_nothing();
  SCOPED_TRACE("call " + std::to_string(static_cast<int>(call)) + ", " + std::to_string(countdown) + ": " +
               problem);

  fs::path latest = latest_checkpoint(directory.path());
  Tensors found = read_all(latest);
  CheckpointReader(latest).verify();
  bool is_new = latest.filename() == "step-0000000" + std::to_string(next) && same(found, sample_tensors(2));
  bool is_old = latest.filename() == "step-00000001" && same(found, sample_tensors(1));
  EXPECT_TRUE(is_new || is_old) << latest;
  if (problem.empty()) {
    EXPECT_TRUE(is_new);
  } else {
    for (const std::string& name : names_in(directory.path()))
      EXPECT_EQ(name.find(".tmp-"), name.npos) << name;
    EXPECT_NE(problem.find("cannot"), problem.npos);
  }
  save(directory.path(), 3, sample_tensors(3), 1, 1);
  EXPECT_EQ(names_in(directory.path()), Names{"step-00000003"}) << "the next save clears up";
  return failed;
}

TEST(CheckpointFaults, EveryFailingCallLeavesAWholeCheckpoint) {
  struct Kind {
    Call call;
    int error;
    int least;  // so many calls there are at least: the seam is in place
  };
  for (Kind kind : {Kind{Call::Open, EMFILE, 5}, Kind{Call::Write, ENOSPC, 3}, Kind{Call::Write, EIO, 3},
                    Kind{Call::Fsync, EIO, 5}, Kind{Call::Mkdir, EACCES, 1}, Kind{Call::Rename, EACCES, 1}})
    for (int64_t next : {1, 2}) {
      int countdown = 0;
      while (try_with_failure(kind.call, countdown, kind.error, next)) ++countdown;
      EXPECT_GE(countdown, kind.least) << static_cast<int>(kind.call);
    }
}

TEST(CheckpointFaults, FileSystemsWithoutExchangeStillReplace) {
  for (int64_t next : {1, 2}) {
    TemporaryDirectory directory;
    save(directory.path(), 1, sample_tensors(1), 2);
    fail_call(Call::Rename, 0, EINVAL);
    save(directory.path(), next, sample_tensors(2), 2, 1);
    EXPECT_TRUE(has_failed());
    fail_nothing();
    EXPECT_TRUE(same(read_all(latest_checkpoint(directory.path())), sample_tensors(2)));
    EXPECT_EQ(names_in(directory.path()).size(), 1u);
  }
}

TEST(CheckpointFaults, ShortAndInterruptedWritesAreContinued) {
  TemporaryDirectory directory;
  fail_call(Call::ShortWrite, 0, 0);
  save(directory.path(), 1, sample_tensors(1), 2);
  fail_nothing();
  EXPECT_TRUE(same(read_all(directory.path() / "step-00000001"), sample_tensors(1)));
  fail_call(Call::Write, 2, EINTR);
  save(directory.path(), 2, sample_tensors(2), 2);
  EXPECT_TRUE(has_failed());
  fail_nothing();
  EXPECT_TRUE(same(read_all(directory.path() / "step-00000002"), sample_tensors(2)));
}

// The limit on file sizes fails a write in the middle of the data, as a full disk does.
TEST(CheckpointFaults, AFileThatCannotGrowIsRemoved) {
  TemporaryDirectory directory;
  Tensors tensors{{"big", make_tensor(Dtype::f32, {1 << 20}, 1)}};
  save(directory.path(), 1, tensors, 1);
  auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  rlimit limit{1 << 20, old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  fs::path temporary = CheckpointWriter::begin(directory.path(), 2);
  EXPECT_ERROR(CheckpointWriter::write_shard(temporary, 0, pieces_of(tensors, 0, 1)), Io,
               "rank-00000.safetensors: cannot write");
  EXPECT_TRUE(names_in(temporary).empty());
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  CheckpointWriter::abandon(temporary);
  EXPECT_EQ(names_in(directory.path()), Names{"step-00000001"});
  EXPECT_TRUE(same(read_all(directory.path() / "step-00000001"), tensors));
}

TEST(CheckpointFaults, TooLittleSpaceIsToldBeforeWriting) {
  TemporaryDirectory directory;
  fs::path temporary = CheckpointWriter::begin(directory.path(), 1);
  unsigned char byte = 0;
  std::vector<TensorPiece> pieces{
      {"t", Dtype::u8, {int64_t{1} << 60}, BoxRange::whole({{int64_t{1} << 60}}), &byte}};
  EXPECT_ERROR(CheckpointWriter::write_shard(temporary, 0, pieces), Io, "bytes free; free disk space");
  EXPECT_TRUE(names_in(temporary).empty());
}

TEST(CheckpointFaults, ADirectoryThatCannotBeMade) {
  TemporaryDirectory directory;
  write_file(directory.path() / "file", "");
  EXPECT_ERROR(CheckpointWriter::begin(directory.path() / "file", 1), Io, "cannot create");
  EXPECT_ERROR(latest_checkpoint(directory.path() / "file"), Io, "cannot list");
  EXPECT_ERROR(CheckpointWriter::write_shard(directory.path() / "step-00000001.tmp-0000000000000001", 0, {}),
               Io, "step-00000001.tmp-");
}

}  // namespace
}  // namespace zero

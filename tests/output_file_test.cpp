// Outputs that appear whole or not at all, replace nothing of another kind, and leave nothing behind.
#include "base/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using testing::read_bytes;
using testing::TemporaryDirectory;
using Type = UnfinishedOutput::Type;

constexpr OutputKind kSong = {.name = "a song",
                              .is = [](std::string_view head) { return head.starts_with("la"); }};

void write_song(const fs::path& path, std::string_view text = "la la") {
  OutputFile file(path, &kSong);
  file.append(std::as_bytes(std::span(text)));
  file.publish();
}

int entries_of(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// In a process that ends there and then, as one that is killed.
void in_a_dead_process(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
}

TEST(OutputFile, ReplacesOnlyItsOwnKind) {
  const TemporaryDirectory folder;
  const fs::path song = folder.path() / "song";
  write_song(song, "la old");
  write_song(song);
  EXPECT_EQ(read_bytes(song), "la la");
  write_song(folder.write("empty", ""));
  const fs::path text = folder.write("text", "precious");
  EXPECT_ERROR(write_song(text), Config, "it exists and is not a song");
  fs::create_symlink(text, folder.path() / "link");
  EXPECT_ERROR(write_song(folder.path() / "link"), Config, "link: it exists and is not a song");
  EXPECT_EQ(read_bytes(text), "precious");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(write_song(folder.path() / "pipe"), Config, "it is no regular file");
  EXPECT_ERROR(write_song(folder.path()), Io, "it is a directory");
  EXPECT_EQ(entries_of(folder.path()), 5);
}

// Before there is anything to write, which may take hours.
TEST(OutputFile, LooksFirst) {
  const TemporaryDirectory folder;
  const fs::path text = folder.write("text", "precious");
  EXPECT_ERROR(OutputFile(text, &kSong), Config, "it exists and is not a song");
  EXPECT_EQ(entries_of(folder.path()), 1);
}

TEST(OutputFile, LooksOnceMoreBeforeItReplaces) {
  const TemporaryDirectory folder;
  const fs::path song = folder.path() / "song";
  OutputFile file(song, &kSong);
  folder.write("song", "precious");
  EXPECT_ERROR(file.publish(), Config, "it exists and is not a song");
  EXPECT_EQ(read_bytes(song), "precious");
}

TEST(OutputFile, WhatAKilledWriterLeftGoes) {
  const TemporaryDirectory folder;
  const fs::path song = folder.path() / "song";
  in_a_dead_process([&] { new OutputFile(song); });
  ASSERT_EQ(entries_of(folder.path()), 1);
  write_song(song);
  EXPECT_EQ(read_bytes(song), "la la");
  EXPECT_EQ(entries_of(folder.path()), 1);
}

TEST(OutputFile, OneWriterAtATime) {
  const TemporaryDirectory folder;
  const fs::path song = folder.path() / "song";
  {
    OutputFile first(song);
    EXPECT_ERROR(OutputFile(song), Io, "another process is writing it");
    first.publish();
    write_song(song);
  }
  EXPECT_EQ(entries_of(folder.path()), 1);
}

TEST(OutputFile, TakesNothingThatALinkLeadsTo) {
  const TemporaryDirectory folder;
  const fs::path precious = folder.write("precious/text", "text").parent_path();
  fs::create_symlink(precious / "text", folder.path() / "song.zero-tmp");
  write_song(folder.path() / "song");
  fs::create_directory_symlink(precious, folder.path() / "album.zero-tmp");
  UnfinishedOutput(folder.path() / "album", Type::Directory).publish();
  EXPECT_EQ(read_bytes(precious / "text"), "text");
  EXPECT_EQ(entries_of(folder.path()), 3);
}

TEST(UnfinishedOutput, DirectoriesAppearWholeAndLeaveNothing) {
  const TemporaryDirectory folder;
  const fs::path album = folder.path() / "album";
  in_a_dead_process([&] {
    auto* left = new UnfinishedOutput(album, Type::Directory);
    replace_file(left->path() / "left", "by a dead process");
  });
  ASSERT_EQ(entries_of(folder.path()), 1);
  {
    const UnfinishedOutput given_up(album, Type::Directory);
    EXPECT_EQ(entries_of(given_up.path()), 0);
    EXPECT_ERROR(UnfinishedOutput(album, Type::Directory), Io, "another process is writing it");
  }
  EXPECT_EQ(entries_of(folder.path()), 0);
  UnfinishedOutput output(album, Type::Directory);
  replace_file(output.path() / "song", "la");
  EXPECT_FALSE(fs::exists(album));
  output.publish();
  EXPECT_EQ(read_bytes(album / "song"), "la");
  EXPECT_EQ(entries_of(folder.path()), 1);
}

}  // namespace
}  // namespace zero

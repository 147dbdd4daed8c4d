// Token files: what is written is read, and no broken file is.
#include "zero/token_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <random>

#include "support/expect_error_texts.h"
#include "support/temporary_directory.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using testing::TemporaryDirectory;

constexpr Vocabulary kSmall{50257, 0x1234};
constexpr Vocabulary kLarge{128256, 0xabcdef};

std::vector<int32_t> random_ids(size_t count, int64_t vocab_size) {
  std::mt19937 random(4);
  std::vector<int32_t> ids(count);
  for (auto& id : ids) id = static_cast<int32_t>(random() % vocab_size);
  return ids;
}

void write(const fs::path& path, const Vocabulary& vocabulary, const std::vector<int32_t>& ids) {
  TokenFileWriter writer(path, vocabulary);
  writer.append(ids);
  writer.publish();
}

std::vector<int32_t> read_all(const TokenFile& file) {
  std::vector<int32_t> ids(file.size());
  file.read(0, ids);
  return ids;
}

int files_in(const fs::path& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

// Flips, replaces or cuts bytes of a good file.
fs::path broken(const TemporaryDirectory& folder, const std::function<void(std::string&)>& damage) {
  write(folder.path() / "good", kSmall, random_ids(1000, 50257));
  std::string bytes = testing::read_bytes(folder.path() / "good");
  damage(bytes);
  return folder.write("broken", bytes);
}

class Width : public ::testing::TestWithParam<Vocabulary> {};

TEST_P(Width, ReadsWhatWasWritten) {
  const TemporaryDirectory folder;
  const Vocabulary vocabulary = GetParam();
  const auto ids = random_ids(300000, vocabulary.size);
  TokenFileWriter writer(folder.path() / "t", vocabulary);
  for (size_t at = 0, step = 1; at < ids.size(); at += step, step = step * 3 + 1) {
    writer.append(std::span(ids).subspan(at, std::min(step, ids.size() - at)));
  }
  EXPECT_EQ(writer.size(), 300000);
  EXPECT_FALSE(fs::exists(folder.path() / "t"));
  writer.publish();
  EXPECT_EQ(files_in(folder.path()), 1);

  const TokenFile file = TokenFile::open(folder.path() / "t");
  EXPECT_EQ(file.vocabulary(), vocabulary);
  EXPECT_EQ(file.width(), vocabulary.size <= 65536 ? 2 : 4);
  EXPECT_EQ(read_all(file), ids);
  EXPECT_EQ(file.tokens16().size(), file.width() == 2 ? ids.size() : 0);
  EXPECT_EQ(file.tokens32().size(), file.width() == 4 ? ids.size() : 0);
  std::vector<int32_t> some(7);
  file.read(299993, some);
  EXPECT_EQ(some, std::vector<int32_t>(ids.end() - 7, ids.end()));
  EXPECT_NO_THROW(file.verify());
  EXPECT_NO_THROW(file.require_vocabulary(vocabulary));
}

INSTANTIATE_TEST_SUITE_P(TokenFile, Width,
                         ::testing::Values(kSmall, kLarge, Vocabulary{65536, 1}, Vocabulary{65537, 1},
                                           Vocabulary{1, 0}));

TEST(TokenFile, MayBeEmpty) {
  const TemporaryDirectory folder;
  write(folder.path() / "t", kSmall, {});
  const TokenFile file = TokenFile::open(folder.path() / "t");
  EXPECT_EQ(file.size(), 0);
  EXPECT_NO_THROW(file.verify());
}

// The layout of docs/formats.md, byte by byte.
TEST(TokenFile, HasTheDocumentedLayout) {
  const TemporaryDirectory folder;
  write(folder.path() / "t", {50257, 0x1122334455667788}, {1, 50256});
  const std::string bytes = testing::read_bytes(folder.path() / "t");
  ASSERT_EQ(bytes.size(), 68U);
  EXPECT_EQ(bytes.substr(0, 8), "ZEROTOK\n");
  const auto number = [&](size_t at, size_t count) {
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
    return value;
  };
  EXPECT_EQ(number(8, 4), 1U);
  EXPECT_EQ(number(12, 4), 0x01020304U);
  EXPECT_EQ(number(16, 4), 2U);
  EXPECT_EQ(number(20, 4), 0U);
  EXPECT_EQ(number(24, 8), 2U);
  EXPECT_EQ(number(32, 8), 50257U);
  EXPECT_EQ(number(40, 8), 0x1122334455667788U);
  EXPECT_EQ(number(64, 2), 1U);
  EXPECT_EQ(number(66, 2), 50256U);
}

TEST(TokenFile, NamesWhatIsBroken) {
  const TemporaryDirectory folder;
  const auto refused = [&](ErrorKind kind, std::vector<std::string> texts,
                           const std::function<void(std::string&)>& damage) {
    const auto path = broken(folder, damage);
    texts.push_back(path.string());
    expect_error(kind, texts, [&] { TokenFile::open(path).verify(); });
  };
  refused(ErrorKind::Corrupt, {"expected 2064 bytes, found 2063", "cut off"}, [](auto& b) { b.pop_back(); });
  refused(ErrorKind::Corrupt, {"expected 2064 bytes, found 64"}, [](auto& b) { b.resize(64); });
  refused(ErrorKind::Corrupt, {"header of 64 bytes, found 63"}, [](auto& b) { b.resize(63); });
  refused(ErrorKind::Corrupt, {"found 0 bytes"}, [](auto& b) { b.clear(); });
  refused(ErrorKind::Corrupt, {"expected 2064 bytes, found 2065"}, [](auto& b) { b.push_back('x'); });
  refused(ErrorKind::Corrupt, {"no token file"}, [](auto& b) { b[0] = 'z'; });
  refused(ErrorKind::Unsupported, {"version 2"}, [](auto& b) { b[8] = 2; });
  refused(ErrorKind::Unsupported, {"byte order"}, [](auto& b) { std::memcpy(b.data() + 12, "\1\2\3\4", 4); });
  refused(ErrorKind::Corrupt, {"checksum"}, [](auto& b) { b[1000] ^= 1; });
}

TEST(TokenFile, EveryByteOfTheHeaderIsProtected) {
  const TemporaryDirectory folder;
  for (size_t at = 0; at < 64; ++at) {
    const auto path = broken(folder, [&](std::string& bytes) { bytes[at] ^= 0x40; });
    EXPECT_THROW(TokenFile::open(path), Error) << at;
  }
}

// Any other file, of any length, is refused and not followed.
TEST(TokenFile, SurvivesNoise) {
  const TemporaryDirectory folder;
  std::mt19937 random(6);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 2 == 0 && bytes.size() >= 16) std::memcpy(bytes.data(), "ZEROTOK\n\1\0\0\0\4\3\2\1", 16);
    EXPECT_THROW(TokenFile::open(folder.write("noise", bytes)), Error);
  }
}

TEST(TokenFile, RefusesWhatIsNoFile) {
  const TemporaryDirectory folder;
  expect_error(ErrorKind::Io, {"missing", "No such file"},
               [&] { TokenFile::open(folder.path() / "missing"); });
  expect_error(ErrorKind::Io, {"not a regular file"}, [&] { TokenFile::open(folder.path()); });
}

TEST(TokenFile, RefusesAnotherVocabulary) {
  const TemporaryDirectory folder;
  write(folder.path() / "t", kSmall, {1, 2, 3});
  const TokenFile file = TokenFile::open(folder.path() / "t");
  expect_error(ErrorKind::Config, {"50257", "0000000000001234", "128256", "0000000000abcdef"},
               [&] { file.require_vocabulary(kLarge); });
  EXPECT_THROW(file.require_vocabulary({50257, 0x1235}), Error);
}

TEST(TokenFile, RefusesRangesAndIdsOutside) {
  const TemporaryDirectory folder;
  write(folder.path() / "t", kSmall, {1, 2, 3});
  const TokenFile file = TokenFile::open(folder.path() / "t");
  std::vector<int32_t> two(2), four(4);
  expect_error(ErrorKind::Usage, {"2 tokens from 2 on", "file of 3"}, [&] { file.read(2, two); });
  expect_error(ErrorKind::Usage, {"from -1 on"}, [&] { file.read(-1, two); });
  expect_error(ErrorKind::Usage, {"4 tokens"}, [&] { file.read(0, four); });
  TokenFileWriter writer(folder.path() / "u", kSmall);
  expect_error(ErrorKind::Usage, {"id 50257", "50257"}, [&] { writer.append(std::vector<int32_t>{50257}); });
  expect_error(ErrorKind::Usage, {"id -1"}, [&] { writer.append(std::vector<int32_t>{-1}); });
  expect_error(ErrorKind::Usage, {"vocabulary of 0"}, [&] { TokenFileWriter(folder.path() / "v", {0, 0}); });
}

// A file whose checksums are right and whose ids are not: only a writer with another idea of the vocabulary
// makes it.
TEST(TokenFile, VerifyFindsIdsOutsideOfTheVocabulary) {
  const TemporaryDirectory folder;
  write(folder.path() / "wide", {60000, 7}, {1, 2, 59999});
  write(folder.path() / "narrow", {100, 7}, {1, 2, 3});
  // The narrow header with the wide payload and its checksum, so that only the ids are wrong.
  const std::string wide = testing::read_bytes(folder.path() / "wide"),
                    narrow = testing::read_bytes(folder.path() / "narrow");
  std::string both = narrow.substr(0, 48) + wide.substr(48, 8) + std::string(8, '\0') + wide.substr(64);
  const uint64_t checksum = XXH3_64bits(both.data(), 56);
  std::memcpy(both.data() + 56, &checksum, 8);
  const TokenFile file = TokenFile::open(folder.write("mixed", both));
  expect_error(ErrorKind::Corrupt, {"mixed", "token 2 is 59999", "vocabulary of 100"},
               [&] { file.verify(); });
  std::vector<int32_t> ids(3);
  expect_error(ErrorKind::Corrupt, {"token 2 is 59999"}, [&] { file.read(0, ids); });
}

TEST(TokenFileWriter, WithoutPublishLeavesTheOldFile) {
  const TemporaryDirectory folder;
  write(folder.path() / "t", kSmall, {1, 2, 3});
  {
    TokenFileWriter writer(folder.path() / "t", kSmall);
    writer.append(std::vector<int32_t>{4, 5});
    writer.finish();
    EXPECT_EQ(files_in(folder.path()), 2);
  }
  EXPECT_EQ(files_in(folder.path()), 1);
  EXPECT_EQ(read_all(TokenFile::open(folder.path() / "t")), (std::vector<int32_t>{1, 2, 3}));
  write(folder.path() / "t", kSmall, {9});
  EXPECT_EQ(read_all(TokenFile::open(folder.path() / "t")), std::vector<int32_t>{9});
}

TEST(TokenFileWriter, NamesAFolderThatIsNotThere) {
  const TemporaryDirectory folder;
  expect_error(ErrorKind::Io, {"none/t", "No such file"},
               [&] { TokenFileWriter(folder.path() / "none" / "t", kSmall); });
  expect_error(ErrorKind::Io, {"directory"}, [&] { TokenFileWriter(folder.path(), kSmall); });
}

// A limit on the length of files stands in for a full disk: write() fails in the same place.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    old_handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

TEST(TokenFileWriter, AFullDiskLeavesTheOldFileAndNothingElse) {
  const TemporaryDirectory folder;
  write(folder.path() / "t", kSmall, {1, 2, 3});
  for (const size_t tokens : {5000U, 3000000U}) {  // fails in finish() and in append()
    const auto ids = random_ids(tokens, kSmall.size);
    const FileLimit limit(4096);
    expect_error(ErrorKind::Io, {(folder.path() / "t").string(), "File too large"},
                 [&] { write(folder.path() / "t", kSmall, ids); });
  }
  EXPECT_EQ(files_in(folder.path()), 1);
  EXPECT_EQ(read_all(TokenFile::open(folder.path() / "t")), (std::vector<int32_t>{1, 2, 3}));
}

TEST(TokenFileWriter, NeverWritesThroughALinkInItsWay) {
  const TemporaryDirectory folder;
  const auto precious = folder.write("precious", "text");
  fs::create_symlink(precious, folder.path() / ("t.zero-tmp"));
  write(folder.path() / "t", kSmall, {1, 2});
  EXPECT_EQ(testing::read_bytes(precious), "text");
  EXPECT_EQ(read_all(TokenFile::open(folder.path() / "t")), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(files_in(folder.path()), 2);
}

}  // namespace
}  // namespace zero

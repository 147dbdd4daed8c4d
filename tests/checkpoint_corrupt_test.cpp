// Checkpoints that do not hold what they should: flipped bits, lost bytes, forged indexes and headers.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

using namespace testing;
namespace fs = std::filesystem;
using nlohmann::json;

Tensors tiny_tensors() {
  return {{"a", make_tensor(Dtype::f32, {3}, 1)}, {"b/c", make_tensor(Dtype::bf16, {2, 3}, 2)}};
}

class Corrupt : public ::testing::Test {
 protected:
  Corrupt() : checkpoint_(save(directory_.path(), 1, tiny_tensors(), 2)) {}

  // Reading everything either fails as Corrupt or gives the true data.
  ::testing::AssertionResult is_caught() {
    try {
      if (same(read_all(checkpoint_), tiny_tensors())) return ::testing::AssertionSuccess();
      return ::testing::AssertionFailure() << "wrong data was returned";
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Corrupt) return ::testing::AssertionSuccess();
      return ::testing::AssertionFailure() << error.what();
    }
  }

  // In place: rewriting whole files would wait for the disk each time.
  void flip(const char* name, size_t byte, int bit) {
    std::fstream stream(file(name), std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(static_cast<std::streamoff>(byte));
    char flipped = static_cast<char>(stream.get() ^ (1 << bit));
    stream.seekp(static_cast<std::streamoff>(byte));
    stream.put(flipped);
  }

  fs::path file(const char* name) const { return checkpoint_ / name; }

  // Changes the index and gives it a right checksum, as a clumsy tool would.
  void forge(const std::function<void(json&)>& change) {
    json index = json::parse(original_index_);
    index.erase("checksum");
    change(index);
    write_index(index.dump());
  }
  void write_index(std::string object) {
    object.pop_back();
    char checksum[17];
    std::snprintf(checksum, sizeof checksum, "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits(object.data(), object.size())));
    write_file(file("index.json"), object + ",\n\"checksum\": \"" + checksum + "\"\n}\n");
  }

  void set_header(const std::string& text) {
    std::string length(8, '\0');
    uint64_t size = text.size();
    std::memcpy(length.data(), &size, 8);
    std::string old = read_bytes(file("rank-00000.safetensors"));
    uint64_t old_size = 0;
    std::memcpy(&old_size, old.data(), 8);
    std::string bytes = length + text + old.substr(8 + old_size);
    write_file(file("rank-00000.safetensors"), bytes);
    forge([&](json& index) { index["files"]["rank-00000.safetensors"] = bytes.size(); });
  }
  std::string header() const {
    std::string bytes = read_bytes(file("rank-00000.safetensors"));
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), 8);
    return bytes.substr(8, size);
  }
  // A header that is as long as before, so that offsets stay right.
  void change_header(const std::string& from, const std::string& to) {
    std::string text = header();
    size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << text;
    size_t length = text.size();
    text.replace(at, from.size(), to);
    text.resize(length, ' ');
    set_header(text);
  }

  TemporaryDirectory directory_;
  fs::path checkpoint_;
  std::string original_index_ = read_bytes(checkpoint_ / "index.json");
};

#define EXPECT_CORRUPT(part) EXPECT_ERROR(CheckpointReader{checkpoint_}, Corrupt, part)

TEST_F(Corrupt, EveryFlippedBitIsCaughtOrHarmless) {
  for (const char* name : {"index.json", "rank-00000.safetensors", "rank-00001.safetensors"}) {
    std::string original = read_bytes(file(name));
    for (size_t i = 0; i < original.size(); ++i)
      for (int bit = 0; bit < 8; ++bit) {
        flip(name, i, bit);
        ASSERT_TRUE(is_caught()) << name << " byte " << i << " bit " << bit;
        flip(name, i, bit);
      }
    EXPECT_EQ(read_bytes(file(name)), original);
  }
}

TEST_F(Corrupt, EveryFlippedBitOfTheDataIsNamed) {
  const char* name = "rank-00000.safetensors";
  std::string original = read_bytes(file(name));
  size_t data = 8 + header().size();
  ASSERT_LT(data, original.size());
  for (size_t i = data; i < original.size(); ++i) {
    flip(name, i, 0);
    CheckpointReader reader(checkpoint_);
    EXPECT_ERROR(reader.verify(), Corrupt, "rank-00000.safetensors: tensor \"");
    flip(name, i, 0);
  }
}

// Parts of a piece are checked as the whole is, and damage elsewhere in the piece is none of a reader's
// business.
TEST(CorruptBlocks, PartsOfPiecesAreChecked) {
  TemporaryDirectory directory;
  const int64_t count = 3 * kChecksumBytes / 4 + 100;
  Tensors tensors{{"t", make_tensor(Dtype::f32, {count}, 1)}, {"u", make_tensor(Dtype::u8, {7}, 2)}};
  fs::path checkpoint = save(directory.path(), 1, tensors, 1);
  const StoredPiece piece = CheckpointReader(checkpoint).tensors().at("t").pieces[0];
  ASSERT_EQ(piece.checksums.size(), 4u);
  std::vector<unsigned char> out(static_cast<size_t>(count * 4));
  const int64_t bad = kChecksumBytes / 4 + 5;  // an element of the second block
  {
    std::fstream stream(checkpoint / piece.file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(piece.offset_bytes + bad * 4);
    stream.put('\x55');
  }
  CheckpointReader reader(checkpoint);
  const int64_t block = kChecksumBytes / 4;
  for (const auto& [begin, numel] : {std::pair{int64_t{0}, block},
                                     {3, block - 3},
                                     {2 * block, block + 100},
                                     {2 * block + 1, int64_t{1}},
                                     {count - 1, int64_t{1}}}) {
    reader.read("t", BoxRange::flat({{count}}, begin, numel), out.data());
    EXPECT_EQ(std::memcmp(out.data(), tensors["t"].bytes.data() + begin * 4, static_cast<size_t>(numel * 4)),
              0);
  }
  for (const auto& [begin, numel] : {std::pair{bad, int64_t{1}},
                                     {block, int64_t{1}},
                                     {2 * block - 1, int64_t{1}},
                                     {block - 1, int64_t{2}},
                                     {int64_t{0}, count},
                                     {1, count - 1}})
    EXPECT_ERROR(reader.read("t", BoxRange::flat({{count}}, begin, numel), out.data()), Corrupt,
                 ("tensor \"t\", piece [0:" + std::to_string(count) + "]@0, at byte"));
  EXPECT_ERROR(reader.verify(), Corrupt, "rank-00000.safetensors: tensor \"t\"");
  const auto damaged = reader.find_damage();
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_EQ(damaged[0].tensor, "t");
  EXPECT_EQ(damaged[0].offset_bytes, piece.offset_bytes + kChecksumBytes);
}

TEST_F(Corrupt, AllDamageIsFound) {
  for (const char* name : {"rank-00001.safetensors", "rank-00000.safetensors"})
    flip(name, fs::file_size(file(name)) - 1, 3);
  const auto damaged = CheckpointReader(checkpoint_).find_damage();
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_EQ(damaged[0].file, "rank-00000.safetensors");
  EXPECT_EQ(damaged[1].file, "rank-00001.safetensors");
  EXPECT_EQ(damaged[1].range.begin, 3);
}

TEST_F(Corrupt, ACutFileNamesWhatIsLost) {
  const char* name = "rank-00000.safetensors";
  fs::resize_file(file(name), fs::file_size(file(name)) - 1);
  EXPECT_CORRUPT("lost from tensor \"b/c\" on");
}

TEST_F(Corrupt, EveryTruncationIsCaught) {
  for (const char* name : {"index.json", "rank-00000.safetensors", "rank-00001.safetensors"}) {
    std::string original = read_bytes(file(name));
    for (size_t length = original.size(); length-- > 0;) {
      fs::resize_file(file(name), length);
      EXPECT_ERROR(CheckpointReader{checkpoint_}, Corrupt, name);
    }
    write_file(file(name), original + "x");
    EXPECT_ERROR(CheckpointReader{checkpoint_}, Corrupt, name);
    write_file(file(name), original);
  }
}

TEST_F(Corrupt, AFileThatShrinksWhileOpenIsCaught) {
  CheckpointReader reader(checkpoint_);
  fs::resize_file(file("rank-00001.safetensors"), fs::file_size(file("rank-00001.safetensors")) - 1);
  EXPECT_ERROR(reader.verify(), Corrupt, "rank-00001.safetensors");
}

TEST_F(Corrupt, MissingFilesAndThingsThatAreNoFiles) {
  EXPECT_ERROR(CheckpointReader(directory_.path() / "none"), Io, "index.json: cannot open");
  fs::rename(file("rank-00001.safetensors"), file("away"));
  EXPECT_ERROR(CheckpointReader{checkpoint_}, Io, "rank-00001.safetensors: cannot open");
  fs::create_symlink(file("away"), file("rank-00001.safetensors"));
  EXPECT_ERROR(CheckpointReader{checkpoint_}, Io, "rank-00001.safetensors: cannot open");
  fs::remove(file("rank-00001.safetensors"));
  fs::create_directory(file("rank-00001.safetensors"));
  EXPECT_ERROR(CheckpointReader{checkpoint_}, Io, "not a regular file");
}

TEST_F(Corrupt, ADirectoryWithAnotherStepsNameIsRefused) {
  const fs::path wrong = directory_.path() / "step-00000007", own_name = directory_.path() / "best";
  fs::rename(checkpoint_, wrong);
  for (const fs::path& path : {wrong, wrong / ""})
    EXPECT_ERROR(CheckpointReader{path}, Corrupt,
                 "its index says step 1; give it its name step-00000001 again");
  fs::rename(wrong, own_name);
  CheckpointReader{own_name}.verify();
}

TEST_F(Corrupt, FilesOfTwoSavesAreToldApart) {
  TemporaryDirectory other;
  Tensors same_shapes = tiny_tensors();
  fs::path second = save(other.path(), 1, same_shapes, 2);
  fs::copy_file(second / "rank-00001.safetensors", file("rank-00001.safetensors"),
                fs::copy_options::overwrite_existing);
  std::string id = json::parse(original_index_)["save_id"];
  EXPECT_CORRUPT("the index to save " + id);
  EXPECT_CORRUPT("it belongs to save " +
                 json::parse(read_bytes(second / "index.json"))["save_id"].get<std::string>());
}

TEST_F(Corrupt, ForgedIndexesAreRefused) {
  struct Case {
    std::function<void(json&)> change;
    const char* part;
  };
  auto piece = [](json& index) -> json& { return index["tensors"]["b/c"]["pieces"][0]; };
  auto box = [&](json& index) -> json& { return piece(index)["box"]; };
  auto tensor = [](json& index) -> json& { return index["tensors"]["b/c"]; };
  const Case cases[] = {
      {[](json& i) { i["format"] = "other"; }, "format"},
      {[](json& i) { i.erase("step"); }, "step: expected a whole number from 0 to 2^63 - 1, got nothing"},
      {[](json& i) { i["step"] = -1; }, "step"},
      {[](json& i) { i["step"] = 1.5; }, "step"},
      {[](json& i) { i["step"] = 9223372036854775808u; }, "step"},
      {[](json& i) { i["world"] = 3; }, "world is 3"},
      {[](json& i) { i["save_id"] = "0x12"; }, "save_id"},
      {[](json& i) { i["save_id"] = 17; }, "save_id"},
      {[](json& i) { i["metadata"] = "text"; }, "metadata"},
      {[](json& i) { i["tensors"] = json::array(); }, "tensors"},
      {[](json& i) { i["files"] = 7; }, "files"},
      {[](json& i) { i["files"]["rank-00000.safetensors"] = -5; },
       "files[\"rank-00000.safetensors\"]: expected a whole number from 0 to 2^63 - 1, got -5"},
      {[](json& i) { i["files"]["rank-00000.safetensors"] = 4; }, "cannot hold"},
      {[](json& i) { i["files"]["rank-00000.safetensors"] = 9000; }, "the index says 9000"},
      {[](json& i) { i["files"]["../../etc/passwd"] = 9000, i["world"] = 3; }, "not a plain file name"},
      {[](json& i) { i["files"]["/etc/passwd"] = 9000, i["world"] = 3; }, "not a plain file name"},
      {[](json& i) { i["files"][".."] = 9000, i["world"] = 3; }, "not a plain file name"},
      {[](json& i) { i["files"][std::string("a\0b", 3)] = 9000, i["world"] = 3; }, "not a plain file name"},
      {[](json& i) { i["files"].erase("rank-00001.safetensors"), i["world"] = 1; }, "not listed"},
      {[&](json& i) { tensor(i)["dtype"] = "F12"; }, "unknown dtype \"F12\""},
      {[&](json& i) { tensor(i)["dtype"] = "F64"; }, ""},
      {[&](json& i) { tensor(i)["dtype"] = "F16"; }, "disagree on tensor \"b/c\""},
      {[&](json& i) {
         tensor(i)["shape"] = {2, -3};
       },
       "shape"},
      {[&](json& i) {
         tensor(i)["shape"] = {4294967296, 4294967296};
       },
       "too large"},
      {[&](json& i) {
         tensor(i)["shape"] = {2, 4};
       },
       "no piece holds element 3"},
      {[&](json& i) { tensor(i)["shape"] = {0}; }, "outside its shape [0]"},
      {[&](json& i) { tensor(i)["shape"] = std::vector<int>(65, 1); }, "more than 64 dims"},
      {[&](json& i) { tensor(i)["pieces"].erase(0); }, "no piece holds element 0"},
      {[&](json& i) { tensor(i)["pieces"].push_back(piece(i)); }, "two pieces hold element 0"},
      {[&](json& i) { std::swap(tensor(i)["pieces"][0], tensor(i)["pieces"][1]); }, "not in order"},
      {[&](json& i) { tensor(i)["pieces"] = 3; }, "pieces"},
      {[&](json& i) { tensor(i)["pieces"][0] = 3; }, "pieces"},
      {[&](json& i) { piece(i)["begin"] = 1; }, "two pieces hold element 3"},
      {[&](json& i) { piece(i)["begin"] = 1, piece(i)["numel"] = 2; }, "no piece holds element 0"},
      {[&](json& i) { piece(i)["numel"] = 2; }, "no piece holds element 2"},
      {[&](json& i) { piece(i)["begin"] = 9223372036854775807; }, "outside its shape [2, 3]"},
      {[&](json& i) { piece(i)["numel"] = 0; }, "outside its shape [2, 3]"},
      {[&](json& i) { piece(i)["numel"] = 9223372036854775807; }, "outside its shape [2, 3]"},
      {[&](json& i) { piece(i).erase("box"); }, "box: expected an object, got nothing"},
      {[&](json& i) { piece(i)["box"] = 3; }, "box: expected an object"},
      {[&](json& i) { box(i).erase("size"); }, "size: expected an array"},
      {[&](json& i) { box(i)["begin"] = {0}; }, "outside its shape [2, 3]"},
      {[&](json& i) {
         box(i)["begin"] = {0, 0, 0};
       },
       "outside its shape [2, 3]"},
      {[&](json& i) { box(i)["begin"] = std::vector<int>(100000, 0); }, "more than 64 dims"},
      {[&](json& i) { box(i)["begin"][1] = -1; },
       "tensors[\"b/c\"].pieces[0].box.begin[1]: expected a whole number"},
      {[&](json& i) { box(i)["begin"][1] = 1; }, "outside its shape [2, 3]"},
      {[&](json& i) { box(i)["begin"][1] = 9223372036854775807; }, "outside its shape [2, 3]"},
      {[&](json& i) { box(i)["size"][1] = 9223372036854775807; }, "outside its shape [2, 3]"},
      {[&](json& i) { box(i)["size"][1] = 0; }, "outside its shape [2, 3]"},
      {[&](json& i) { box(i)["size"][1] = 2; }, "no piece holds element 2"},
      {[&](json& i) { box(i)["size"][0] = 1; }, "disagree on tensor \"b/c\""},
      {[&](json& i) { piece(i)["offset_bytes"] = 9223372036854775807; }, "is outside rank-00000"},
      {[&](json& i) { piece(i)["offset_bytes"] = 0; }, "is outside rank-00000"},
      {[&](json& i) { piece(i)["offset_bytes"] = piece(i)["offset_bytes"].get<int>() - 2; }, "disagree"},
      {[&](json& i) { piece(i)["file"] = "rank-00001.safetensors"; }, "is outside rank-00001"},
      {[&](json& i) { piece(i)["file"] = "../rank-00000.safetensors"; }, "not listed"},
      {[&](json& i) { piece(i)["checksums"] = "12"; }, "checksums: expected an array"},
      {[&](json& i) { piece(i)["checksums"] = {"12"}; }, "checksums[0]: expected 16 hexadecimal digits"},
      {[&](json& i) { piece(i)["checksums"] = {12}; }, "checksums[0]: expected 16 hexadecimal digits"},
      {[&](json& i) { piece(i)["checksums"] = json::array(); }, "has 0 checksums, expected 1"},
      {[&](json& i) { piece(i)["checksums"].push_back(piece(i)["checksums"][0]); }, "has 2 checksums"},
      {[&](json& i) { i["tensors"].erase("a"); }, "the index knows 1"},
  };
  for (const Case& c : cases) {
    forge(c.change);
    EXPECT_CORRUPT(c.part);
  }
  forge([](json& i) { i["version"] = 2; });
  EXPECT_ERROR(CheckpointReader{checkpoint_}, Unsupported,
               "checkpoint format version 2, this program reads 3; a development version of zero.cpp before "
               "0.1.0 wrote it; make ordinary files of it with that version's `zero consolidate`");
  forge([](json& i) { i["version"] = 4; });
  EXPECT_ERROR(CheckpointReader{checkpoint_}, Unsupported, "a later zero.cpp wrote it");
  forge([](json&) {});
  EXPECT_TRUE(same(read_all(checkpoint_), tiny_tensors())) << "the forging itself is sound";
  forge([&](json& i) { piece(i)["checksums"][0] = "0123456789abcdef"; });
  EXPECT_ERROR(read_all(checkpoint_), Corrupt, "0123456789abcdef");
}

TEST_F(Corrupt, IndexesThatAreNotJsonAreRefused) {
  for (const char* text : {"{]", "[1}", "{\"a\":1,\"a\":2}", "{\"format\":\xff}",
                           "{\"format\":\"zero-checkpoint\",\"step\":1e999}"}) {
    write_index(text);
    EXPECT_CORRUPT("index.json");
  }
  write_index("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}");
  EXPECT_CORRUPT("nested too deeply");
  write_index("{\"tensors\":{\"t\":{},\"t\":{}}}");
  EXPECT_CORRUPT("key \"t\" is given twice");
}

TEST_F(Corrupt, HeadersOfAbsurdLengthAreRefused) {
  std::string original = read_bytes(file("rank-00000.safetensors"));
  for (uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{original.size()}, uint64_t{1} << 33, ~uint64_t{0}}) {
    std::string changed = original;
    std::memcpy(changed.data(), &length, 8);
    write_file(file("rank-00000.safetensors"), changed);
    EXPECT_CORRUPT("rank-00000.safetensors");
  }
}

TEST_F(Corrupt, HeadersThatDisagreeAreRefused) {
  std::string original = read_bytes(file("rank-00000.safetensors"));
  auto refused = [&](const std::string& from, const std::string& to, const char* part) {
    change_header(from, to);
    EXPECT_CORRUPT(part);
    write_file(file("rank-00000.safetensors"), original);
  };
  refused("b/c[0:2,0:3]@0", "b/d[0:2,0:3]@0", "disagree on tensor \"b/c\"");
  refused("b/c[0:2,0:3]@0", "a[0:3]@0", "twice");
  refused("[3]", "[4]", "do not fit");
  refused("[3]", "[]", "do not fit");
  refused("[3]", "[-3]", "shape");
  refused("[0:2,0:3]@0", "[0:3,0:2]@0", "disagree on tensor \"b/c\", piece [0:2,0:3]@0");
  refused("BF16", "F16", "disagree");
  refused("BF16", "X16", "unknown dtype");
  change_header("\"format\":\"zero\",", "");
  refused("[3]", "[1,3]", "disagree on tensor \"b/c\"");
  refused("[0,8]", "[2,8]", "do not fit");
  refused("[8,14]", "[0,6]", "begins at byte");
  refused("\"save_id\"", "\"save\"", "save_id");
  refused("__metadata__", "__meta__", "");
  refused("{\"__metadata__\":", "{\"a@9\":", "");
}

}  // namespace
}  // namespace zero

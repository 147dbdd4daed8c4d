// Checkpoints: round trips over ranks, publishing, keeping, the files' format, and what callers may not do.
#include "zero/checkpoint.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace zero {
namespace {

using namespace testing;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(Checkpoint, ReadsOnAnyNumberOfRanksWhatAnyNumberWrote) {
  Tensors tensors = sample_tensors();
  for (int writers : {1, 2, 3, 4, 7}) {
    TemporaryDirectory directory;
    CheckpointReader reader(save(directory.path(), 5, tensors, writers));
    EXPECT_EQ(reader.step(), 5);
    EXPECT_EQ(reader.metadata(), R"({"lr":0.5})");
    reader.verify();
    ASSERT_EQ(reader.tensors().size(), tensors.size());
    for (int readers : {1, 2, 3, 5})
      for (int rank = 0; rank < readers; ++rank)
        for (const TensorPiece& piece : pieces_of(tensors, rank, readers)) {
          std::vector<unsigned char> out(static_cast<size_t>(piece.range.numel * itemsize(piece.dtype)));
          reader.read(piece.name, piece.range, out.data());
          const auto* expected = static_cast<const unsigned char*>(piece.data);
          EXPECT_TRUE(std::equal(out.begin(), out.end(), expected))
              << piece.name << ", " << writers << " to " << readers << " ranks";
        }
  }
}

TEST(Checkpoint, ReadsEveryRange) {
  TemporaryDirectory directory;
  Tensors tensors{{"t", make_tensor(Dtype::i16, {9, 3}, 1)}};
  CheckpointReader reader(save(directory.path(), 0, tensors, 4));
  for (int64_t begin = 0; begin <= 27; ++begin)
    for (int64_t numel = 0; numel <= 27 - begin; ++numel) {
      std::vector<unsigned char> out(static_cast<size_t>(numel * 2));
      reader.read("t", BoxRange::flat({{9, 3}}, begin, numel), out.data());
      EXPECT_TRUE(std::equal(out.begin(), out.end(), tensors["t"].bytes.begin() + begin * 2));
    }
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const BoxRange& wrong :
       {BoxRange::flat({{9, 3}}, 0, 28), BoxRange::flat({{9, 3}}, -1, 1), BoxRange::flat({{9, 3}}, 1, most),
        BoxRange::whole({{27}}), BoxRange::whole({{9, 4}}), BoxRange{Box{{1, 0}, {most, 1}}, 0, 1}})
    EXPECT_ERROR(reader.read("t", wrong, nullptr), Usage, "are outside its shape [9, 3]");
  EXPECT_ERROR(reader.read("u", BoxRange::flat({{1}}, 0, 1), nullptr), Usage, "\"u\"");
}

// A part of a tensor costs its own bytes and at most the rest of two blocks.
TEST(Checkpoint, ReadsOnlyWhatIsAsked) {
  TemporaryDirectory directory;
  const int64_t numel = 5 * kChecksumBytes / 2;
  Tensors tensors{{"t", make_tensor(Dtype::bf16, {numel}, 1)}, {"small", make_tensor(Dtype::f32, {100}, 2)}};
  fs::path checkpoint = save(directory.path(), 0, tensors, 2);
  std::vector<unsigned char> out(static_cast<size_t>(numel * 2));
  auto cost = [&](const char* name, int64_t begin, int64_t count) {
    CheckpointReader reader(checkpoint);
    reader.read(name, BoxRange::flat(tensors.at(name).shape, begin, count), out.data());
    return reader.bytes_read();
  };
  EXPECT_EQ(CheckpointReader(checkpoint).bytes_read(), 0);
  EXPECT_EQ(cost("t", 0, numel), 2 * numel);
  EXPECT_EQ(cost("t", 0, numel / 2), numel);
  EXPECT_EQ(cost("small", 0, 50), 200);
  EXPECT_EQ(cost("small", 50, 50), 200);
  EXPECT_EQ(cost("t", 10, 0), 0);
  const int64_t block = kChecksumBytes / 2;
  EXPECT_EQ(cost("t", block, block), kChecksumBytes);
  EXPECT_EQ(cost("t", block + 3, 1), kChecksumBytes);
  EXPECT_EQ(cost("t", block - 1, 2), 2 * kChecksumBytes);
}

TEST(Checkpoint, IsReadByManyThreads) {
  TemporaryDirectory directory;
  Tensors tensors{{"t", make_tensor(Dtype::f32, {100000}, 1)}};
  CheckpointReader reader(save(directory.path(), 0, tensors, 3));
  std::vector<std::thread> threads;
  std::vector<std::vector<unsigned char>> out(4, std::vector<unsigned char>(400000));
  for (auto& mine : out)
    threads.emplace_back([&] { reader.read("t", BoxRange::whole({{100000}}), mine.data()); });
  for (std::thread& thread : threads) thread.join();
  for (auto& mine : out) EXPECT_EQ(mine, tensors["t"].bytes);
}

TEST(Checkpoint, LargePiecesGoInSeveralWrites) {
  TemporaryDirectory directory;
  Tensors tensors{
      {"big", make_tensor(Dtype::f64, {3 << 17, 5}, 9)}};  // 15 MiB: several chunks, the last one partial
  fs::path checkpoint = save(directory.path(), 1, tensors, 1);
  EXPECT_TRUE(same(read_all(checkpoint), tensors));
  CheckpointReader(checkpoint).verify();
}

TEST(Checkpoint, SafetensorsFilesAreWellFormed) {
  TemporaryDirectory directory;
  fs::path checkpoint = save(directory.path(), 1, sample_tensors(), 2);
  for (const char* name : {"rank-00000.safetensors", "rank-00001.safetensors"}) {
    std::string file = read_bytes(checkpoint / name);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    EXPECT_EQ(length % 8, 0u);
    auto header = nlohmann::json::parse(file.substr(8, length));
    std::map<int64_t, int64_t> ranges;
    for (const auto& [key, entry] : header.items()) {
      if (key == "__metadata__") continue;
      Dtype dtype = *dtype_from_safetensors(entry["dtype"].get<std::string>());
      ASSERT_EQ(entry["shape"].size(), 1u);
      EXPECT_EQ(entry["data_offsets"][0].get<int64_t>() % itemsize(dtype), 0) << key << " is not aligned";
      ranges[entry["data_offsets"][0]] = entry["data_offsets"][1];
    }
    int64_t next = 0;
    for (auto [begin, end] : ranges) EXPECT_EQ(begin, std::exchange(next, end));
    EXPECT_EQ(8 + length + static_cast<uint64_t>(next), file.size());
  }
}

// The worked example of docs/checkpoint_format.md, but for the save's random id.
TEST(Checkpoint, TheWorkedExampleIsTrue) {
  TemporaryDirectory directory;
  const fs::path temporary = CheckpointWriter::begin(directory.path(), 7);
  const float left[6] = {0, 1, 4, 5, 8, 9}, right[6] = {2, 3, 6, 7, 10, 11};
  std::vector<ShardManifest> manifests;
  for (int rank : {0, 1, 2, 3}) {
    const int slice = rank % 2, part = rank / 2;
    const TensorPiece piece{"model/weight",
                            Dtype::f32,
                            {3, 4},
                            {Box{{0, 2 * slice}, {3, 2}}, 3 * part, 3},
                            (slice == 0 ? left : right) + 3 * part};
    manifests.push_back(CheckpointWriter::write_shard(temporary, rank, std::span(&piece, 1)));
  }
  const fs::path checkpoint = CheckpointWriter::publish(temporary, directory.path(), 7, manifests, "{}", 0);
  const std::string document = read_bytes(fs::path(ZERO_TEST_DATA) / "../docs/checkpoint_format.md");
  const std::string id = temporary.filename().string().substr(18), shown = "5f2c9a0b7d1e4836";
  auto as_shown = [&](std::string text) { return text.replace(text.find(id), id.size(), shown); };

  const Tensors read = read_all(checkpoint);
  std::vector<float> values(12);
  std::memcpy(values.data(), read.at("model/weight").bytes.data(), 48);
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  const std::string file = read_bytes(checkpoint / "rank-00003.safetensors");
  const std::string header = as_shown(file.substr(8, file.find_last_of('}') - 7));
  EXPECT_NE(document.find("\n" + header + "\n"), document.npos) << header;
  std::string index = as_shown(read_bytes(checkpoint / "index.json"));
  index.erase(index.rfind(",\n\"checksum\""));
  char checksum[17];
  std::snprintf(checksum, sizeof checksum, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(index.data(), index.size())));
  index.append(",\n\"checksum\": \"").append(checksum).append("\"\n}\n");
  EXPECT_NE(document.find("\n" + index), document.npos) << index;
}

TEST(Checkpoint, ASaveThatFailedLeavesNothing) {
  TemporaryDirectory directory;
  fs::path temporary = CheckpointWriter::begin(directory.path() / "made", 3);
  CheckpointWriter::write_shard(temporary, 0, {});
  EXPECT_EQ(latest_checkpoint(directory.path() / "made"), "") << "a temporary is no checkpoint";
  CheckpointWriter::abandon(temporary);
  EXPECT_TRUE(names_in(directory.path() / "made").empty());
  CheckpointWriter::abandon(temporary);
  CheckpointWriter::abandon(directory.path() / "made");
  EXPECT_TRUE(fs::exists(directory.path() / "made")) << "only temporaries are removed";
}

TEST(Checkpoint, OtherRanksNameTheTemporaryByItsId) {
  TemporaryDirectory directory;
  fs::path temporary = CheckpointWriter::begin(directory.path(), 123456789012);
  uint64_t id = CheckpointWriter::save_id(temporary);
  EXPECT_EQ(CheckpointWriter::temporary_path(directory.path(), 123456789012, id), temporary);
  for (const char* name :
       {"step-00000001", "step-1.tmp-0000000000000000", "step-00000001.tmp-xyz", "other", ""})
    EXPECT_ERROR(CheckpointWriter::save_id(directory.path() / name), Usage, "not the temporary");
}

TEST(Checkpoint, KeepsTheNewestAndTheOneJustWritten) {
  TemporaryDirectory directory;
  EXPECT_EQ(latest_checkpoint(directory.path() / "missing"), "");
  for (int64_t step : {1, 2, 3}) save(directory.path(), step, sample_tensors(), 2);
  EXPECT_EQ(names_in(directory.path()), (Names{"step-00000001", "step-00000002", "step-00000003"}));
  save(directory.path(), 4, sample_tensors(), 2, 2);
  EXPECT_EQ(names_in(directory.path()), (Names{"step-00000003", "step-00000004"}));
  fs::path early = save(directory.path(), 2, sample_tensors(), 2, 1);
  EXPECT_EQ(names_in(directory.path()), (Names{"step-00000002", "step-00000004"}));
  EXPECT_EQ(early.filename(), "step-00000002");
  EXPECT_EQ(latest_checkpoint(directory.path()).filename(), "step-00000004");
}

TEST(Checkpoint, RemovesStaleTemporariesAndNothingElse) {
  TemporaryDirectory directory;
  CheckpointWriter::write_shard(CheckpointWriter::begin(directory.path(), 9), 0, {});
  fs::create_directory(directory.path() / "step-00000007");  // no index: nothing we made
  for (const char* name : {"step-5", "step-00000001.backup", "notes.txt"})
    write_file(directory.path() / name, "x");
  save(directory.path(), 1, sample_tensors(), 1, 1);
  EXPECT_EQ(names_in(directory.path()),
            (Names{"notes.txt", "step-00000001", "step-00000001.backup", "step-00000007", "step-5"}));
  EXPECT_EQ(latest_checkpoint(directory.path()).filename(), "step-00000001");
}

TEST(Checkpoint, ReplacesTheSameStepWhole) {
  TemporaryDirectory directory;
  save(directory.path(), 1, sample_tensors(0), 4);
  fs::path checkpoint = save(directory.path(), 1, sample_tensors(50), 2);
  EXPECT_TRUE(same(read_all(checkpoint), sample_tensors(50)));
  EXPECT_EQ(names_in(directory.path()), Names{"step-00000001"});
  EXPECT_EQ(names_in(checkpoint), (Names{"index.json", "rank-00000.safetensors", "rank-00001.safetensors"}));
}

TEST(Checkpoint, AReaderNeverMixesTwoSaves) {
  TemporaryDirectory directory;
  CheckpointReader reader(save(directory.path(), 1, sample_tensors(0), 2));
  save(directory.path(), 1, sample_tensors(50), 2);
  float out[13];
  EXPECT_ERROR(reader.read("model/h.0.bias", BoxRange::flat({{13}}, 2, 3), out), Corrupt,
               "changed while the checkpoint was open");
}

TEST(Checkpoint, WrongPiecesAreNamed) {
  TemporaryDirectory directory;
  fs::path temporary = CheckpointWriter::begin(directory.path(), 1);
  float data[6] = {};
  auto write = [&](std::vector<TensorPiece> pieces) { CheckpointWriter::write_shard(temporary, 0, pieces); };
  EXPECT_ERROR(write({flat_piece("t", Dtype::f32, {2, 3}, 4, 3, data)}), Usage, "\"t[0:2,0:3]@4\"");
  EXPECT_ERROR(write({flat_piece("t", Dtype::f32, {2, 3}, -1, 3, data)}), Usage, "outside");
  EXPECT_ERROR(write({flat_piece("t", Dtype::f32, {2, 3}, 0, 6, nullptr)}), Usage, "no data");
  EXPECT_ERROR(write({flat_piece("t", Dtype::f32, {2, -3}, 0, 0, data)}), Usage, "shape");
  EXPECT_ERROR(write({flat_piece("t", Dtype::f64, {int64_t{1} << 60}, 0, 0, data)}), Usage, "shape");
  EXPECT_ERROR(write({flat_piece("", Dtype::f32, {6}, 0, 6, data)}), Usage, "name");
  EXPECT_ERROR(write({flat_piece("\xff", Dtype::f32, {6}, 0, 6, data)}), Usage, "UTF-8");
  EXPECT_ERROR(
      write({flat_piece("t", Dtype::f32, {6}, 0, 2, data), flat_piece("t", Dtype::f32, {6}, 0, 2, data)}),
      Usage, "twice");
  EXPECT_ERROR(
      write({flat_piece("t", Dtype::f32, {6}, 0, 2, data), flat_piece("t", Dtype::f32, {3, 2}, 2, 2, data)}),
      Usage, "disagree");
  EXPECT_ERROR(CheckpointWriter::write_shard(temporary, -1, {}), Usage, "rank -1");
  EXPECT_ERROR(CheckpointWriter::begin(directory.path(), -1), Usage, "step -1");
  EXPECT_TRUE(names_in(temporary).empty());
  write({flat_piece("t", Dtype::f32, {2, 3}, 0, 6, data)});
  EXPECT_ERROR(write({flat_piece("t", Dtype::f32, {2, 3}, 0, 6, data)}), Io,
               "rank-00000.safetensors: cannot create");
  EXPECT_EQ(names_in(temporary), Names{"rank-00000.safetensors"}) << "the other rank's file stays";
}

TEST(Checkpoint, PiecesMustCoverEveryTensorOnce) {
  TemporaryDirectory directory;
  float data[6] = {};
  auto publish = [&](std::vector<TensorPiece> zero, std::vector<TensorPiece> one) {
    fs::path temporary = CheckpointWriter::begin(directory.path(), 1);
    std::vector<ShardManifest> manifests{CheckpointWriter::write_shard(temporary, 0, zero),
                                         CheckpointWriter::write_shard(temporary, 1, one)};
    CheckpointWriter::publish(temporary, directory.path(), 1, manifests, "{}", 0);
  };
  auto piece = [&](int64_t begin, int64_t numel) {
    return flat_piece("t", Dtype::f32, {6}, begin, numel, data);
  };
  EXPECT_ERROR(publish({piece(0, 3)}, {}), Internal, "\"t\": no piece holds element 3");
  EXPECT_ERROR(publish({piece(1, 3)}, {piece(4, 2)}), Internal, "no piece holds element 0");
  EXPECT_ERROR(publish({piece(0, 3)}, {piece(2, 4)}), Internal, "two pieces hold element 2");
  EXPECT_ERROR(publish({piece(0, 6)}, {piece(0, 6)}), Internal, "two pieces hold element 0");
  EXPECT_ERROR(publish({piece(0, 3)}, {flat_piece("t", Dtype::bf16, {6}, 3, 3, data)}), Internal, "disagree");
  EXPECT_EQ(latest_checkpoint(directory.path()), "");
  publish({piece(3, 3)}, {piece(0, 3)});
  EXPECT_TRUE(same(read_all(latest_checkpoint(directory.path())),
                   {{"t", {Dtype::f32, {6}, std::vector<unsigned char>(24)}}}));
}

TEST(Checkpoint, MetadataIsAJsonObject) {
  TemporaryDirectory directory;
  for (const char* bad : {"", "[]", "3", "{", R"({"a":1,"a":2})"})
    EXPECT_ERROR(save(directory.path(), 1, sample_tensors(), 1, 0, bad), Usage, "metadata");
  EXPECT_TRUE(names_in(directory.path()).empty());
  std::string metadata = R"({"big":18446744073709551615,"rng":"\u0000\n","x":0.1})";
  EXPECT_EQ(CheckpointReader(save(directory.path(), 1, sample_tensors(), 1, 0, metadata)).metadata(),
            metadata);
}

TEST(Checkpoint, AShardThatWasCutShortIsNotPublished) {
  TemporaryDirectory directory;
  fs::path temporary = CheckpointWriter::begin(directory.path(), 1);
  float data[6] = {};
  std::vector<TensorPiece> pieces{flat_piece("t", Dtype::f32, {6}, 0, 6, data)};
  std::vector<ShardManifest> manifests{CheckpointWriter::write_shard(temporary, 0, pieces)};
  fs::resize_file(temporary / manifests[0].file, 20);
  EXPECT_ERROR(CheckpointWriter::publish(temporary, directory.path(), 1, manifests, "{}", 0), Io, "20 bytes");
  fs::remove(temporary / manifests[0].file);
  EXPECT_ERROR(CheckpointWriter::publish(temporary, directory.path(), 1, manifests, "{}", 0), Io,
               "cannot open");
}

}  // namespace
}  // namespace zero

// Weights of a checkpoint that are mapped, or kept on a disk: the bits of read ones, little private memory,
// and damage is an error by name.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/small_run.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/inference.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using testing::DiskDirectory;
using testing::run_ranks;
using testing::SmallRun;
using testing::train_on;

const std::vector<int64_t> kMappedPrompt{1, 2};
const GenerateOptions kMappedDrawn{.max_new_tokens = 6, .seed = 5};
const EvaluateOptions kMappedEvaluate{.sequence_length = 8, .batch_size = 2};

/// Bytes of this process that are nobody else's and in no file.
int64_t private_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  int64_t sum = 0;
  for (std::string key; rollup >> key;)
    if (int64_t kib = 0; key == "Private_Dirty:" && rollup >> kib) sum += kib << 10;
  return sum;
}

TokenFile text(const SmallRun& run) { return TokenFile::open(run.path() / "eval.tokens"); }

/// The file and the offset of the first byte of a parameter's first piece.
std::pair<fs::path, int64_t> place_of(const fs::path& checkpoint, const std::string& parameter) {
  const CheckpointReader reader(checkpoint);
  const StoredPiece& piece = reader.tensors().at("model/" + parameter).pieces.front();
  return {checkpoint / piece.file, piece.offset_bytes};
}

void flip_byte(const std::pair<fs::path, int64_t>& place) {
  std::fstream stream(place.first, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekg(place.second);
  const char flipped = static_cast<char>(stream.get() ^ 1);
  stream.seekp(place.second);
  stream.put(flipped);
}

// Of two ranks' checkpoints some parameters lie in two pieces: one rank copies these, two read them all.
TEST(MappedCheckpoints, GiveTheBitsOfReadOnes) {
  const SmallRun small;
  for (const int trained : {1, 2}) {
    const std::string run = "of" + std::to_string(trained);
    train_on(trained, small.config(trained, {"run.steps=2"}, run));
    const SavedModel saved = find_model(small.path() / run);
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(run + " on " + std::to_string(ranks));
      run_ranks(ranks, [&](const Mesh& mesh) {
        Inference mapped(saved, mesh), read(saved, mesh, {.map_weights = false});
        EXPECT_EQ(mapped.is_mapped(), trained == 1 || ranks == 1);
        EXPECT_FALSE(read.is_mapped());
        EXPECT_EQ(mapped.generate(kMappedPrompt, kMappedDrawn), read.generate(kMappedPrompt, kMappedDrawn));
        EXPECT_EQ(mapped.evaluate(text(small), kMappedEvaluate).loss,
                  read.evaluate(text(small), kMappedEvaluate).loss);
      });
    }
  }
}

// Nothing of a bf16 run's masters is of the type that is computed in.
TEST(MappedCheckpoints, MastersOfAnotherTypeAreRead) {
  const SmallRun small;
  train_on(1, small.config(1, {"run.steps=1", "bf16.enabled=true"}));
  run_ranks(1, [&](const Mesh& mesh) {
    EXPECT_FALSE(Inference(find_model(small.path() / "run"), mesh).is_mapped());
  });
}

// Beside the model a process takes some for its own: stacks, code that is linked, pages of its parent's.
TEST(MappedCheckpoints, TakeNoPrivateMemory) {
  const SmallRun small;
  train_on(1, small.config(1, {"run.steps=1", "model.width=512", "model.heads=4", "model.layers=8"}));
  const SavedModel saved = find_model(small.path() / "run");
  const int64_t model_bytes = 4LL * 8 * 12 * 512 * 512;
  const auto taken = [&](bool maps) {
    const auto results = run_ranks(1, [&](const Mesh& mesh) {
      const int64_t before = private_bytes();
      Inference inference(saved, mesh, {.map_weights = maps});
      inference.generate(kMappedPrompt, kMappedDrawn);
      testing::hand_back(std::to_string(private_bytes() - before));
    });
    return std::stoll(results.at(0).bytes);
  };
  const int64_t mapped = taken(true), read = taken(false);
  EXPECT_LT(mapped, model_bytes / 2);
  EXPECT_GT(read - mapped, model_bytes * 3 / 4);
}

// Every rank says so, whichever has compared that parameter.
TEST(MappedCheckpoints, DamageIsAnErrorByName) {
  const SmallRun small;
  train_on(1, small.config(1, {"run.steps=2"}));
  const SavedModel saved = find_model(small.path() / "run");
  std::vector<std::string> names;
  const CheckpointReader whole(saved.checkpoint);
  for (const auto& [name, stored] : whole.tensors())
    if (name.starts_with("model/")) names.push_back(name.substr(6));
  for (const size_t at : {size_t{0}, size_t{1}, names.size() - 1}) {
    SCOPED_TRACE(names[at]);
    const auto place = place_of(saved.checkpoint, names[at]);
    flip_byte(place);
    for (const int ranks : {1, 2})
      run_ranks(ranks, [&](const Mesh& mesh) {
        EXPECT_ERROR(Inference(saved, mesh), Corrupt, "model/" + names[at]);
      });
    flip_byte(place);
    run_ranks(2, [&](const Mesh& mesh) { EXPECT_TRUE(Inference(saved, mesh).is_mapped()); });
  }
}

TEST(WeightsOnDisk, GiveTheBitsOfThoseInMemory) {
  const SmallRun small;
  const DiskDirectory disk;
  train_on(2, small.config(2, {"run.steps=2", "bf16.enabled=true"}));
  const SavedModel saved = find_model(small.path() / "run");
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](const Mesh& mesh) {
      Inference away(saved, mesh, {.budget_bytes = 0, .disk = disk.path().string()}), here(saved, mesh);
      ASSERT_FALSE(away.is_mapped());
      EXPECT_EQ(away.generate(kMappedPrompt, kMappedDrawn), here.generate(kMappedPrompt, kMappedDrawn));
      EXPECT_EQ(away.evaluate(text(small), kMappedEvaluate).loss,
                here.evaluate(text(small), kMappedEvaluate).loss);
      EXPECT_GT(away.engine().stats().disk.read_bytes, 0);
      EXPECT_ERROR(Inference(saved, mesh, {.disk = "/nowhere"}), Config, "/nowhere");
    });
}

}  // namespace
}  // namespace zero

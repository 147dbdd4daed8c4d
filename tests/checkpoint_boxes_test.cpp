// Boxes of tensors in checkpoints: whoever wrote which boxes, any range of any other is read; pieces that
// leave something out or hold it twice are refused, in bounded time.
#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <random>
#include <set>

#include "checkpoint/coverage.h"
#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"

namespace zero {
namespace {

using namespace testing;
namespace fs = std::filesystem;
using Bytes = std::vector<unsigned char>;

// By the definition, an element at a time.
std::vector<int64_t> places_of(const BoxRange& range, const std::vector<int64_t>& shape) {
  std::vector<int64_t> places;
  for (int64_t i = range.begin; i < range.end(); ++i) {
    int64_t rest = i, place = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      place += (range.box.begin[d] + rest % range.box.size[d]) * stride;
      rest /= range.box.size[d];
      stride *= shape[d];
    }
    places.push_back(place);
  }
  return places;
}

Bytes values_of(const GlobalTensor& tensor, const BoxRange& range) {
  const int64_t item = itemsize(tensor.dtype);
  Bytes values;
  for (const int64_t place : places_of(range, tensor.shape))
    values.insert(values.end(), tensor.bytes.begin() + place * item,
                  tensor.bytes.begin() + (place + 1) * item);
  return values;
}

// A save in which rank r writes the ranges ranks[r] of each tensor.
fs::path save_ranges(const fs::path& directory, const Tensors& tensors,
                     const std::vector<std::map<std::string, std::vector<BoxRange>>>& ranks) {
  const fs::path temporary = CheckpointWriter::begin(directory, 1);
  std::vector<ShardManifest> manifests;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<TensorPiece> pieces;
    std::list<Bytes> memory;
    for (const auto& [name, ranges] : ranks[rank])
      for (const BoxRange& range : ranges) {
        const GlobalTensor& tensor = tensors.at(name);
        memory.push_back(values_of(tensor, range));
        pieces.push_back({name, tensor.dtype, tensor.shape, range, memory.back().data()});
      }
    const auto manifest = CheckpointWriter::write_shard(temporary, static_cast<int>(rank), pieces);
    manifests.push_back(manifest_from_text(to_text(manifest)));
  }
  return CheckpointWriter::publish(temporary, directory, 1, manifests, "{}", 0);
}

void expect_reads(const CheckpointReader& reader, const std::string& name, const GlobalTensor& tensor,
                  const BoxRange& range) {
  Bytes out(static_cast<size_t>(range.numel * itemsize(tensor.dtype)), 0xcd);
  reader.read(name, range, out.data());
  ASSERT_EQ(out, values_of(tensor, range))
      << to_string(range.box) << "@" << range.begin << "+" << range.numel;
}

// Rank r of `data` x `model` ranks: of a slice along `dim`, the r / model-th part.
BoxRange part_of(const std::vector<int64_t>& shape, size_t dim, int model, int data, int rank) {
  Box box = Box::whole(shape);
  const int64_t slice = rank % model, part = rank / model;
  box.begin[dim] = shape[dim] * slice / model;
  box.size[dim] = shape[dim] * (slice + 1) / model - box.begin[dim];
  const int64_t numel = box.numel(), begin = numel * part / data, end = numel * (part + 1) / data;
  return {std::move(box), begin, end - begin};
}

TEST(CheckpointBoxes, OneWorldWritesAndAnyOtherReads) {
  const std::vector<int64_t> shape{7, 10};
  const Tensors tensors{{"t", make_tensor(Dtype::f32, shape, 1)}};
  struct World {
    size_t dim;
    int model, data;
  };
  const std::vector<World> worlds{{0, 1, 1}, {1, 2, 2}, {0, 2, 2}, {1, 3, 1},
                                  {0, 1, 4}, {1, 2, 3}, {1, 10, 1}};
  for (const World& writes : worlds) {
    std::vector<std::map<std::string, std::vector<BoxRange>>> ranks;
    for (int rank = 0; rank < writes.model * writes.data; ++rank)
      ranks.push_back({{"t", {part_of(shape, writes.dim, writes.model, writes.data, rank)}}});
    TemporaryDirectory directory;
    const CheckpointReader reader(save_ranges(directory.path(), tensors, ranks));
    EXPECT_EQ(reader.tensors().at("t").pieces.size(), ranks.size()) << "one piece a rank";
    reader.verify();
    EXPECT_TRUE(same(read_all(directory.path() / "step-00000001"), tensors));
    for (const World& reads : worlds)
      for (int rank = 0; rank < reads.model * reads.data; ++rank)
        expect_reads(reader, "t", tensors.at("t"), part_of(shape, reads.dim, reads.model, reads.data, rank));
    for (int64_t row = 0; row < shape[0]; ++row)
      expect_reads(reader, "t", tensors.at("t"), BoxRange::all_of({{row, 0}, {1, shape[1]}}));
    for (int64_t column = 0; column < shape[1]; ++column)
      expect_reads(reader, "t", tensors.at("t"), BoxRange::all_of({{0, column}, {shape[0], 1}}));
  }
}

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  std::vector<int64_t> shape(int64_t most_dims, int64_t longest) {
    std::vector<int64_t> shape;
    for (int64_t d = below(most_dims + 1); d > 0; --d) shape.push_back(1 + below(longest));
    return shape;
  }
  BoxRange range(const std::vector<int64_t>& shape) {
    Box box;
    for (const int64_t size : shape) {
      box.begin.push_back(below(2) ? 0 : below(size));
      box.size.push_back(below(2) ? size - box.begin.back() : below(size - box.begin.back() + 1));
    }
    const int64_t numel = box.numel(), begin = below(3) ? 0 : below(numel + 1);
    return {std::move(box), begin, below(3) ? numel - begin : below(numel - begin + 1)};
  }
  // Ranges that hold each element of a box once: of the box itself, or of boxes that it is cut into.
  void tile(const Box& box, std::vector<BoxRange>& ranges) {
    const int64_t numel = box.numel();
    if (numel > 1 && below(3) > 0) {
      const auto d = static_cast<size_t>(below(std::ssize(box.size)));
      if (box.size[d] == 1) return tile(box, ranges);
      Box first = box, second = box;
      first.size[d] = 1 + below(box.size[d] - 1);
      second.begin[d] += first.size[d];
      second.size[d] -= first.size[d];
      tile(first, ranges);
      return tile(second, ranges);
    }
    for (int64_t begin = 0; begin < numel;) {
      const int64_t count = below(2) ? numel - begin : 1 + below(numel - begin);
      ranges.push_back({box, begin, count});
      begin += count;
    }
    // Some of it in boxes of another shape: its first elements as they lie, the rest cut anew.
    if (box.size.size() < 2 || ranges.back().begin != 0 || box.size[0] < 2 || below(2)) return;
    const int64_t row = numel / box.size[0];
    ranges.back().numel = row + below(row);
    Box rest = box, line = box;
    const int64_t started = ranges.back().numel - row;
    line.begin[0] += 1;
    line.size[0] = 1;
    if (started < row) ranges.push_back({line, started, row - started});
    rest.begin[0] += 2;
    rest.size[0] -= 2;
    if (rest.size[0] > 0) tile(rest, ranges);
  }

 private:
  std::mt19937 random_;
};

TEST(CheckpointBoxes, RandomBoxesAreReadAsFromAPlainTensor) {
  Random random(11);
  int64_t mixed = 0;
  for (int trial = 0; trial < 60; ++trial) {
    Tensors tensors;
    std::vector<std::map<std::string, std::vector<BoxRange>>> ranks(static_cast<size_t>(1 + random.below(4)));
    for (const char* name : {"a", "b", "c", "d"}) {
      const std::vector<int64_t> shape = random.shape(4, 6);
      tensors[name] = make_tensor(random.below(2) ? Dtype::bf16 : Dtype::f32, shape, trial);
      std::vector<BoxRange> ranges;
      random.tile(Box::whole(shape), ranges);
      std::set<Box> boxes;
      for (BoxRange& range : ranges) {
        boxes.insert(range.box);
        ranks[static_cast<size_t>(random.below(std::ssize(ranks)))][name].push_back(std::move(range));
      }
      mixed += boxes.size() > 1;
    }
    TemporaryDirectory directory;
    const CheckpointReader reader(save_ranges(directory.path(), tensors, ranks));
    reader.verify();
    EXPECT_TRUE(same(read_all(directory.path() / "step-00000001"), tensors));
    for (const auto& [name, tensor] : tensors)
      for (int i = 0; i < 20; ++i) expect_reads(reader, name, tensor, random.range(tensor.shape));
  }
  EXPECT_GT(mixed, 60);
}

// Of large boxes each block that holds something wanted is read once, and no other.
TEST(CheckpointBoxes, ReadsTheBlocksThatHoldTheBox) {
  const std::vector<int64_t> shape{1024, 2048};  // 8 MiB: rows of 8 KiB
  const Tensors tensors{{"t", make_tensor(Dtype::f32, shape, 3)}};
  TemporaryDirectory directory;
  std::vector<std::map<std::string, std::vector<BoxRange>>> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back({{"t", {part_of(shape, 1, 2, 2, rank)}}});
  const fs::path checkpoint = save_ranges(directory.path(), tensors, ranks);
  const auto cost = [&](const BoxRange& range) {
    const CheckpointReader reader(checkpoint);
    expect_reads(reader, "t", tensors.at("t"), range);
    return reader.bytes_read();
  };
  const int64_t block = kChecksumBytes;
  EXPECT_EQ(cost(BoxRange::whole(shape)), 8 * block);
  EXPECT_EQ(cost(BoxRange::all_of({{0, 1024}, {1024, 1024}})), 4 * block) << "the right half";
  EXPECT_EQ(cost({Box{{0, 1024}, {1024, 1024}}, 512 * 1024, 512 * 1024}), 2 * block) << "one rank's piece";
  EXPECT_EQ(cost(BoxRange::all_of({{0, 3}, {1024, 1}})), 4 * block) << "a column is in every block once";
  EXPECT_EQ(cost(BoxRange::all_of({{300, 0}, {2, 2048}})), 2 * block) << "two rows, half of each in a box";
  EXPECT_EQ(cost(BoxRange::all_of({{300, 1024}, {2, 1}})), block);
  EXPECT_EQ(cost({Box{{0, 0}, {1024, 1024}}, 0, 0}), 0);
}

// What is wrong with a tensor's pieces, by counting.
std::optional<std::string> problem_by_counting(const StoredTensor& tensor) {
  std::vector<int> holders(static_cast<size_t>(Box::whole(tensor.shape).numel()), 0);
  for (const StoredPiece& piece : tensor.pieces)
    for (const int64_t place : places_of(piece.range, tensor.shape)) ++holders[static_cast<size_t>(place)];
  for (size_t i = 0; i < holders.size(); ++i)
    if (holders[i] != 1)
      return (holders[i] ? "two pieces hold element " : "no piece holds element ") + std::to_string(i);
  return std::nullopt;
}

StoredTensor stored(const std::vector<int64_t>& shape, const std::vector<BoxRange>& ranges) {
  StoredTensor tensor{.dtype = Dtype::f32, .shape = shape, .pieces = {}};
  for (const BoxRange& range : ranges)
    tensor.pieces.push_back({.file = "f", .range = range, .offset_bytes = 0, .checksums = {}});
  std::sort(tensor.pieces.begin(), tensor.pieces.end(), [](const StoredPiece& a, const StoredPiece& b) {
    return checkpoint::comes_before(a.range, b.range);
  });
  return tensor;
}

TEST(CheckpointBoxes, CoverageEqualsCounting) {
  Random random(5);
  int right = 0, wrong = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const std::vector<int64_t> shape = random.shape(4, 5);
    std::vector<BoxRange> ranges;
    random.tile(Box::whole(shape), ranges);
    const auto any = [&]() -> BoxRange& {
      return ranges[static_cast<size_t>(random.below(std::ssize(ranges)))];
    };
    if (trial % 4 == 1) std::swap(any(), ranges.back()), ranges.pop_back();
    if (trial % 4 == 2) ranges.push_back(random.range(shape));
    if (trial % 4 == 3) any() = random.range(shape);
    std::erase_if(ranges, [](const BoxRange& range) { return range.numel == 0; });
    const StoredTensor tensor = stored(shape, ranges);
    const auto expected = problem_by_counting(tensor), found = checkpoint::coverage_problem(tensor);
    ASSERT_EQ(found.has_value(), expected.has_value()) << found.value_or("") << expected.value_or("");
    // Which element is named first depends on the way it is found; that it is true does not.
    if (found) {
      const int64_t place = std::stoll(found->substr(found->rfind(' ') + 1));
      int64_t holders = 0;
      for (const BoxRange& range : ranges) {
        const std::vector<int64_t> places = places_of(range, shape);
        holders += std::count(places.begin(), places.end(), place);
      }
      ASSERT_EQ(found->starts_with("no piece"), holders == 0) << *found;
      ASSERT_EQ(found->starts_with("two pieces"), holders > 1) << *found;
    }
    ++(found ? wrong : right);
  }
  EXPECT_GT(right, 1000);
  EXPECT_GT(wrong, 1000);
}

TEST(CheckpointBoxes, PiecesMustBeInOrder) {
  StoredTensor tensor = stored({4}, {BoxRange::flat({{4}}, 0, 1), BoxRange::flat({{4}}, 1, 3)});
  EXPECT_EQ(checkpoint::coverage_problem(tensor), std::nullopt);
  std::swap(tensor.pieces[0], tensor.pieces[1]);
  EXPECT_EQ(checkpoint::coverage_problem(tensor), "its pieces are not in order");
}

// Neither many pieces nor pieces that split a tensor in every dim take long.
TEST(CheckpointBoxes, CoverageOfHostilePiecesTakesBoundedTime) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<BoxRange> grid;
  for (int64_t i = 0; i < 300; ++i)
    for (int64_t j = 0; j < 300; ++j) grid.push_back(BoxRange::all_of({{i, 2 * j}, {1, 2}}));
  EXPECT_EQ(checkpoint::coverage_problem(stored({300, 600}, grid)), std::nullopt);
  std::swap(grid[77'777], grid.back());
  grid.pop_back();
  EXPECT_EQ(checkpoint::coverage_problem(stored({300, 600}, grid)),
            "no piece holds element " + std::to_string(77'777 / 300 * 600 + 77'777 % 300 * 2));

  // Of 2^40 elements, the first alone and then half of what is left, dim by dim.
  const std::vector<int64_t> cube(40, 2);
  std::vector<BoxRange> halves;
  Box rest = Box::whole(cube);
  for (size_t d = 0; d < cube.size(); ++d) {
    Box half = rest;
    half.size[d] = rest.size[d] = 1;
    half.begin[d] = 1;
    halves.push_back(BoxRange::all_of(half));
  }
  halves.push_back(BoxRange::all_of(rest));
  EXPECT_EQ(checkpoint::coverage_problem(stored(cube, halves)),
            "its pieces split it in too many ways: 41 boxes along 40 dims");
  // A range that begins and ends in the middle of every dim.
  EXPECT_EQ(checkpoint::coverage_problem(stored(cube, {BoxRange::flat(cube, 1, (int64_t{1} << 40) - 2)})),
            "its pieces split it in too many ways: 78 boxes along 40 dims");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace zero

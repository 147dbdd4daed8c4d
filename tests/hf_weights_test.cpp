// Weights of Hugging Face's directories: values, ranges, several files, and files that do not hold what they
// should.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "hf/weights.h"
#include "support/expect_error.h"
#include "support/safetensors_files.h"
#include "support/temporary_directory.h"

namespace zero::hf {
namespace {

using testing::file_tensor;
using testing::file_with_header;
using testing::FileTensor;
using testing::safetensors_bytes;
using testing::TemporaryDirectory;

std::vector<float> read_all(const Weights& weights, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(weights.find(name)->numel));
  weights.read(name, BoxRange::whole(weights.find(name)->shape), values);
  return values;
}

TEST(Weights, ReadsEveryTypeAsFp32) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors",
                  safetensors_bytes({file_tensor<float>("a", Dtype::f32, {2, 2}, {1.5f, -2, 0, 3e38f}),
                                     file_tensor<uint16_t>("b", Dtype::bf16, {3}, {0x3fc0, 0xc000, 0x7f80}),
                                     // 1.5, -2, the largest, the smallest subnormal, -0, -infinity
                                     file_tensor<uint16_t>("h", Dtype::f16, {6},
                                                           {0x3e00, 0xc000, 0x7bff, 1, 0x8000, 0xfc00}),
                                     file_tensor<float>("scalar", Dtype::f32, {}, {7}),
                                     file_tensor<float>("empty", Dtype::f32, {0, 4}, {})}));
  const Weights weights(directory.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "empty", "h", "scalar"}));
  EXPECT_EQ(weights.find("a")->shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(weights.find("none"), nullptr);
  EXPECT_EQ(read_all(weights, "a"), (std::vector<float>{1.5f, -2, 0, 3e38f}));
  EXPECT_EQ(read_all(weights, "b"), (std::vector<float>{1.5f, -2, INFINITY}));
  const std::vector<float> half = read_all(weights, "h");
  EXPECT_EQ(half, (std::vector<float>{1.5f, -2, 65504, 0x1p-24f, 0, -INFINITY}));
  EXPECT_TRUE(std::signbit(half[4]));
  EXPECT_EQ(read_all(weights, "scalar"), std::vector<float>{7});
  EXPECT_TRUE(read_all(weights, "empty").empty());
}

// Data that begins at an odd byte and spans windows: an element may lie in two of them.
TEST(Weights, ReadsRangesOfLargeTensorsAtAnyAlignment) {
  const TemporaryDirectory directory;
  constexpr int64_t kNumel = 3'000'001;
  std::vector<float> values(kNumel);
  for (int64_t i = 0; i < kNumel; ++i) values[i] = static_cast<float>(i % 9973);
  std::string data(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  const std::string header =
      R"({"odd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"F32","shape":[)" +
      std::to_string(kNumel) + R"(],"data_offsets":[1,)" + std::to_string(1 + 4 * kNumel) + "]}}";
  directory.write("model.safetensors", file_with_header(header, "x" + data));
  const Weights weights(directory.path());
  EXPECT_EQ(read_all(weights, "t"), values);
  for (const int64_t begin : {int64_t{1}, int64_t{1'048'000}, kNumel - 5}) {
    std::vector<float> part(5);
    weights.read("t", BoxRange::flat({{kNumel}}, begin, 5), part);
    EXPECT_EQ(part, std::vector<float>(values.begin() + begin, values.begin() + begin + 5)) << begin;
  }
  std::vector<float> part(5);
  EXPECT_ERROR(weights.read("t", BoxRange::flat({{kNumel}}, kNumel - 4, 5), part), Usage,
               "outside the tensor");
  EXPECT_ERROR(weights.read("t", BoxRange::flat({{kNumel}}, -1, 5), part), Usage, "outside the tensor");
  EXPECT_ERROR(weights.read("odd", BoxRange::whole({{1}}), std::span(part).first(1)), Unsupported, "uint8");
  EXPECT_ERROR(weights.read("none", BoxRange::whole({{5}}), part), Usage, "no such tensor");
}

// A tensor-parallel rank's slice, straight from the file: by columns, rows, both, and parts of those.
TEST(Weights, ReadsBoxes) {
  const TemporaryDirectory directory;
  const std::vector<int64_t> shape{700, 2, 900};  // 5 MB as fp32
  std::vector<float> values(700 * 2 * 900);
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = static_cast<uint16_t>(i % 30011);
    values[i] = std::bit_cast<float>(uint32_t{halves[i]} << 16);
  }
  directory.write("model.safetensors", safetensors_bytes({file_tensor("f", Dtype::f32, shape, values),
                                                          file_tensor("b", Dtype::bf16, shape, halves)}));
  const Weights weights(directory.path());
  for (const Box& box : {Box{{0, 0, 300}, {700, 2, 300}}, Box{{0, 1, 0}, {700, 1, 900}},
                         Box{{350, 0, 0}, {350, 2, 900}}, Box{{0, 1, 899}, {700, 1, 1}},
                         Box{{1, 0, 1}, {699, 2, 1}}, Box{{699, 1, 899}, {1, 1, 1}}, Box::whole(shape)}) {
    const BoxRange all = BoxRange::all_of(box);
    for (const BoxRange& range : {all, all.part(all.numel / 3, all.numel / 2), all.part(all.numel - 1, 1)}) {
      std::vector<float> expected(static_cast<size_t>(range.numel)), found(expected.size());
      CommonRuns runs(BoxRange::whole(shape), range);
      while (const auto run = runs.next())
        std::copy_n(values.begin() + run->from_a, run->numel, expected.begin() + run->from_b);
      for (const char* name : {"f", "b"}) {
        std::fill(found.begin(), found.end(), -1.0f);
        weights.read(name, range, found);
        EXPECT_EQ(found, expected) << name << to_string(box) << range.begin;
      }
    }
  }
  std::vector<float> some(4);
  EXPECT_ERROR(weights.read("f", BoxRange::all_of({{0, 1, 0}, {1, 2, 2}}), some), Usage,
               "outside the tensor");
  EXPECT_ERROR(weights.read("f", BoxRange::all_of({{0, 0}, {2, 2}}), some), Usage, "outside the tensor");
}

TEST(Weights, FollowsAnIndexAndTheLinksOfTheHubsCache) {
  const TemporaryDirectory directory;
  directory.write("blobs/one", safetensors_bytes({file_tensor<float>("a", Dtype::f32, {1}, {1})}));
  directory.write("snapshot/model-00002-of-00002.safetensors",
                  safetensors_bytes({file_tensor<float>("b", Dtype::f32, {2}, {2, 3})}));
  directory.write("snapshot/model.safetensors.index.json",
                  R"({"metadata":{"total_size":12},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
                  R"("b":"model-00002-of-00002.safetensors"}})");
  std::filesystem::create_symlink("../blobs/one",
                                  directory.path() / "snapshot/model-00001-of-00002.safetensors");
  const Weights weights(directory.path() / "snapshot");
  EXPECT_EQ(read_all(weights, "a"), std::vector<float>{1});
  EXPECT_EQ(read_all(weights, "b"), (std::vector<float>{2, 3}));
}

TEST(Weights, RefusesAnIndexThatLies) {
  const auto with_index = [](const std::string& map) {
    const TemporaryDirectory directory;
    directory.write("one.safetensors", safetensors_bytes({file_tensor<float>("a", Dtype::f32, {1}, {1}),
                                                          file_tensor<float>("b", Dtype::f32, {1}, {1})}));
    directory.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
    const Weights weights(directory.path());
  };
  with_index(R"({"a":"one.safetensors","b":"one.safetensors"})");
  EXPECT_ERROR(with_index(R"({"a":"one.safetensors"})"), Corrupt, "\"b\" is not in the index");
  EXPECT_ERROR(with_index(R"({"a":"one.safetensors","b":"one.safetensors","c":"one.safetensors"})"), Corrupt,
               "\"c\" is not in one.safetensors");
  EXPECT_ERROR(with_index(R"({"a":"../one.safetensors"})"), Corrupt, "beside it");
  EXPECT_ERROR(with_index(R"({"a":"/etc/passwd"})"), Corrupt, "beside it");
  EXPECT_ERROR(with_index(R"({"a":"two.safetensors"})"), Io, "two.safetensors");
  EXPECT_ERROR(with_index(R"({"a":7})"), Corrupt, "weight_map[\"a\"]: expected a string, got 7");
  EXPECT_ERROR(with_index("[]"), Corrupt, "weight_map");
  const TemporaryDirectory empty;
  EXPECT_ERROR(Weights(empty.path()), Config, "neither model.safetensors nor model.safetensors.index.json");
}

TEST(Weights, RefusesHeadersThatLie) {
  const auto with_file = [](const std::string& bytes) {
    const TemporaryDirectory directory;
    directory.write("model.safetensors", bytes);
    const Weights weights(directory.path());
  };
  const auto with_header = [&](const std::string& json, const std::string& data = "12345678") {
    with_file(file_with_header(json, data));
  };
  with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})");
  EXPECT_ERROR(with_file("short"), Corrupt, "too short");
  EXPECT_ERROR(with_file(std::string(8, '\xff') + "{}"), Corrupt, "header claims");
  EXPECT_ERROR(with_header("nonsense"), Corrupt, "not valid JSON");
  const char* wrong[] = {
      R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",                      // too few bytes
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}})",                     // beyond the file
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",                      // backwards
      R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",                     // negative
      R"({"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,8]}})",                  // not finite
      R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",  // overflows to 0
      R"({"a":{"dtype":"X9","shape":[2],"data_offsets":[0,8]}})",                       // no such type
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",  // ends before the file
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",  // a gap
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      R"({"a":[]})"};
  for (const char* header : wrong) {
    SCOPED_TRACE(header);
    EXPECT_ERROR(with_header(header), Corrupt, "model.safetensors");
  }
}

TEST(Weights, AFileThatShrinksIsAnErrorNotACrash) {
  const TemporaryDirectory directory;
  const std::vector<float> values(100'000, 1.0f);
  const auto path = directory.write("model.safetensors",
                                    safetensors_bytes({file_tensor("a", Dtype::f32, {100'000}, values)}));
  const Weights weights(directory.path());
  std::filesystem::resize_file(path, 5000);
  std::vector<float> all(values.size());
  EXPECT_ERROR(weights.read("a", BoxRange::whole({{100'000}}), all), Corrupt, "the file ends at byte");
}

TEST(Weights, FilesAreSplitAsTransformersDoes) {
  const std::vector<NewTensor> tensors{
      {"a", Dtype::f32, {4}}, {"b", Dtype::bf16, {2}}, {"c", Dtype::f32, {100}}, {"d", Dtype::f32, {1}}};
  const auto one = split_into_files(tensors, 1'000'000);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].name, "model.safetensors");
  const auto files = split_into_files(tensors, 20);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(files[0].tensors.size(), 2u);
  EXPECT_EQ(files[1].tensors.front().name, "c");
  EXPECT_EQ(
      index_text(files),
      "{\n  \"metadata\": {\n    \"total_size\": 424\n  },\n  \"weight_map\": {\n"
      "    \"a\": \"model-00001-of-00003.safetensors\",\n    \"b\": \"model-00001-of-00003.safetensors\",\n"
      "    \"c\": \"model-00002-of-00003.safetensors\",\n    \"d\": \"model-00003-of-00003.safetensors\"\n  "
      "}\n}\n");
  EXPECT_EQ(safetensors_header(tensors).size() % 8, 0u);
  EXPECT_ERROR(split_into_files(tensors, 0), Usage, "at least one byte");
  EXPECT_ERROR(data_bytes({"x", Dtype::f32, {int64_t{1} << 40, int64_t{1} << 40}}), Usage,
               "impossible shape");
  EXPECT_ERROR(data_bytes({"x", Dtype::f32, {-1}}), Usage, "impossible shape");
}

}  // namespace
}  // namespace zero::hf

// A consolidated .bin file as LibTorch's own reader sees it.
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstring>

#include "export/consolidate.h"
#include "export/pickle.h"
#include "export/zip.h"
#include "support/checkpoint_files.h"
#include "support/temporary_directory.h"

namespace zero {
namespace {

using namespace testing;

TEST(ExportTorch, LibTorchReadsTheStateDict) {
  TemporaryDirectory directory;
  Tensors tensors;
  for (const auto& [name, tensor] : sample_tensors()) tensors["model/" + name] = tensor;
  const auto checkpoint = save(directory.path(), 1, tensors, 2, 0, "{}");
  exporting::consolidate(checkpoint, directory.path() / "out",
                         {.format = ConsolidateOptions::Format::Pytorch},
                         [](const Config&) { return ModuleSpec(); });
  const std::string bytes = read_bytes(directory.path() / "out/pytorch_model.bin");
  const auto state = torch::jit::pickle_load({bytes.begin(), bytes.end()}).toGenericDict();
  ASSERT_EQ(state.size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    const at::Tensor tensor = state.at(name.substr(6)).toTensor();
    EXPECT_EQ(tensor.sizes().vec(), expected.shape) << name;
    EXPECT_EQ(tensor.itemsize(), itemsize(expected.dtype)) << name;
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_FALSE(tensor.requires_grad());
    if (tensor.numel() > 0) {
      EXPECT_EQ(std::memcmp(tensor.const_data_ptr(), expected.bytes.data(), expected.bytes.size()), 0)
          << name;
    }
  }
}

TEST(ExportTorch, LibTorchReadsZip64) {
  TemporaryDirectory directory;
  const std::vector<hf::NewTensor> tensors = {{"a", Dtype::f32, {2, 3}}, {"b", Dtype::i64, {}}};
  exporting::ZipWriter zip(directory.path() / "large", 0);
  zip.add("archive/data.pkl", exporting::state_dict_pickle(tensors));
  zip.add("archive/byteorder", "little");
  const float a[6] = {1, 2, 3, 4, 5, 6};
  const int64_t b = 77;
  zip.add("archive/data/0", std::string_view(reinterpret_cast<const char*>(a), sizeof a));
  zip.add("archive/data/1", std::string_view(reinterpret_cast<const char*>(&b), sizeof b));
  zip.add("archive/version", "3\n");
  zip.finish();
  const std::string bytes = read_bytes(directory.path() / "large");
  const auto state = torch::jit::pickle_load({bytes.begin(), bytes.end()}).toGenericDict();
  EXPECT_EQ(state.at("a").toTensor()[1][2].item<float>(), 6);
  EXPECT_EQ(state.at("b").toTensor().item<int64_t>(), 77);
}

}  // namespace
}  // namespace zero

#pragma once
// A few global tensors, cut into the pieces of any number of ranks, saved and read back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "zero/checkpoint.h"

namespace zero::testing {

struct GlobalTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::vector<unsigned char> bytes;
  int64_t numel() const { return static_cast<int64_t>(bytes.size()) / itemsize(dtype); }
};
using Tensors = std::map<std::string, GlobalTensor>;

inline GlobalTensor make_tensor(Dtype dtype, std::vector<int64_t> shape, int seed) {
  int64_t bytes = itemsize(dtype);
  for (int64_t size : shape) bytes *= size;
  GlobalTensor tensor{dtype, std::move(shape), std::vector<unsigned char>(static_cast<size_t>(bytes))};
  for (size_t i = 0; i < tensor.bytes.size(); ++i)
    tensor.bytes[i] = static_cast<unsigned char>(i * 7 + static_cast<size_t>(seed) * 31 + i / 251);
  return tensor;
}

/// Several dtypes, sizes that no number of ranks divides, a scalar and an empty tensor.
inline Tensors sample_tensors(int seed = 0) {
  return {{"model/h.0.weight", make_tensor(Dtype::bf16, {7, 11}, seed)},
          {"model/h.0.bias", make_tensor(Dtype::f32, {13}, seed + 1)},
          {"model/flag", make_tensor(Dtype::boolean, {3}, seed + 2)},
          {"model/empty", make_tensor(Dtype::f32, {0, 5}, seed)},
          {"optimizer/exp_avg/h.0.weight", make_tensor(Dtype::f32, {7, 11}, seed + 3)},
          {"step", make_tensor(Dtype::i64, {}, seed + 4)}};
}

/// Elements [begin, begin + numel) of a flattened tensor.
inline TensorPiece flat_piece(std::string name, Dtype dtype, std::vector<int64_t> shape, int64_t begin,
                              int64_t numel, const void* data) {
  BoxRange range = BoxRange::flat(shape, begin, numel);
  return {std::move(name), dtype, std::move(shape), std::move(range), data};
}

/// What `rank` holds: an equal part of each tensor, rounded up, so that later ranks may have nothing.
inline std::vector<TensorPiece> pieces_of(const Tensors& tensors, int rank, int ranks) {
  std::vector<TensorPiece> pieces;
  for (const auto& [name, tensor] : tensors) {
    int64_t part = (tensor.numel() + ranks - 1) / ranks;
    int64_t begin = std::min(tensor.numel(), part * rank), end = std::min(tensor.numel(), begin + part);
    pieces.push_back(flat_piece(name, tensor.dtype, tensor.shape, begin, end - begin,
                                tensor.bytes.data() + begin * itemsize(tensor.dtype)));
  }
  return pieces;
}

/// A whole save as `ranks` ranks do it; abandons and rethrows on an error.
inline std::filesystem::path save(const std::filesystem::path& directory, int64_t step,
                                  const Tensors& tensors, int ranks, int keep_last = 0,
                                  const std::string& metadata = R"({"lr":0.5})") {
  std::filesystem::path temporary = CheckpointWriter::begin(directory, step);
  try {
    std::vector<ShardManifest> manifests;
    for (int rank = 0; rank < ranks; ++rank) {
      auto pieces = pieces_of(tensors, rank, ranks);
      ShardManifest manifest = CheckpointWriter::write_shard(temporary, rank, pieces);
      manifests.push_back(manifest_from_text(to_text(manifest)));
    }
    return CheckpointWriter::publish(temporary, directory, step, manifests, metadata, keep_last);
  } catch (...) {
    CheckpointWriter::abandon(temporary);
    throw;
  }
}

/// Everything a checkpoint holds, read in full.
inline Tensors read_all(const std::filesystem::path& checkpoint) {
  CheckpointReader reader(checkpoint);
  Tensors result;
  for (const auto& [name, stored] : reader.tensors()) {
    GlobalTensor tensor = make_tensor(stored.dtype, stored.shape, 0);
    reader.read(name, BoxRange::whole(tensor.shape), tensor.bytes.data());
    result.emplace(name, std::move(tensor));
  }
  return result;
}

inline bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.dtype == y.second.dtype && x.second.shape == y.second.shape &&
           x.second.bytes == y.second.bytes;
  });
}

inline std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace zero::testing

#include "export/weight_files.h"

#include <algorithm>
#include <utility>

#include "checkpoint/file_io.h"
#include "export/convert.h"
#include "export/pickle.h"
#include "export/zip.h"

namespace zero::exporting {
namespace {

std::vector<hf::NewTensor> plain(std::span<const ExportedTensor> tensors) {
  std::vector<hf::NewTensor> result;
  result.reserve(tensors.size());
  for (const ExportedTensor& tensor : tensors) result.push_back(tensor.tensor);
  return result;
}

}  // namespace

// Piece by piece, so that every read is of whole checksum blocks.
void TensorSource::read(const ExportedTensor& tensor,
                        const std::function<void(std::span<const std::byte>)>& sink) {
  const StoredTensor& stored = reader_.tensors().at(tensor.stored);
  const int64_t item = itemsize(stored.dtype), most = 4 * kChecksumBytes / item;
  std::optional<LowRankUpdate> update;
  if (tensor.adapter) update.emplace(reader_, *tensor.adapter, stored.shape);
  for (const StoredPiece& piece : stored.pieces) {
    const int64_t end = piece.begin + piece.numel;
    for (int64_t begin = piece.begin; begin < end; begin += most) {
      const int64_t numel = std::min(most, end - begin);
      stored_.resize(static_cast<size_t>(numel * item));
      reader_.read(tensor.stored, begin, numel, stored_.data());
      Dtype dtype = stored.dtype;
      if (update) merge(*update, begin, std::exchange(dtype, Dtype::f32), tensor.stored);
      converted_.clear();
      convert(dtype, stored_, tensor.tensor.dtype, converted_, tensor.tensor.name);
      sink(converted_);
    }
  }
}

// What was read becomes fp32, with what the adapter adds.
void TensorSource::merge(LowRankUpdate& update, int64_t begin, Dtype dtype, const std::string& name) {
  merged_.clear();
  convert(dtype, stored_, Dtype::f32, merged_, name);
  stored_.swap(merged_);
  update.add_to(begin, {reinterpret_cast<float*>(stored_.data()), stored_.size() / sizeof(float)});
}

void write_safetensors(const std::filesystem::path& path, std::span<const ExportedTensor> tensors,
                       TensorSource& source) {
  checkpoint::BlockWriter file(path);
  const std::string header = hf::safetensors_header(plain(tensors));
  file.add(std::as_bytes(std::span(header)));
  for (const ExportedTensor& tensor : tensors)
    source.read(tensor, [&](std::span<const std::byte> bytes) { file.add(bytes); });
  file.finish();
}

void write_pytorch(const std::filesystem::path& path, std::span<const ExportedTensor> tensors,
                   TensorSource& source) {
  ZipWriter zip(path);
  zip.add("archive/data.pkl", state_dict_pickle(plain(tensors)));
  zip.add("archive/byteorder", "little");
  for (size_t i = 0; i < tensors.size(); ++i)
    zip.add("archive/data/" + std::to_string(i), hf::data_bytes(tensors[i].tensor),
            [&](const ZipWriter::Sink& sink) { source.read(tensors[i], sink); });
  zip.add("archive/version", "3\n");
  zip.finish();
}

}  // namespace zero::exporting

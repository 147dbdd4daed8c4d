#include "export/weight_files.h"

#include <algorithm>
#include <utility>

#include "checkpoint/file_io.h"
#include "export/convert.h"
#include "export/pickle.h"
#include "export/zip.h"

namespace zero::exporting {
namespace {

constexpr int64_t kMostBytes = 4 * kChecksumBytes;  // that are read at a time

std::vector<hf::NewTensor> plain(std::span<const ExportedTensor> tensors) {
  std::vector<hf::NewTensor> result;
  result.reserve(tensors.size());
  for (const ExportedTensor& tensor : tensors) result.push_back(tensor.tensor);
  return result;
}

}  // namespace

void TensorSource::read(const ExportedTensor& tensor, const Sink& sink) {
  std::optional<LowRankUpdate> update;
  if (tensor.adapter) update.emplace(reader_, *tensor.adapter, tensor.tensor.shape);
  LowRankUpdate* const merged = update ? &*update : nullptr;
  tensor.left_out.empty() ? read_stored(tensor, merged, sink) : read_frozen(tensor, merged, sink);
}

// Piece by piece where pieces are flat ranges, so that every read is of whole checksum blocks.
void TensorSource::read_stored(const ExportedTensor& tensor, LowRankUpdate* update, const Sink& sink) {
  const StoredTensor& stored = reader_.tensors().at(tensor.stored);
  const int64_t item = itemsize(stored.dtype), most = kMostBytes / item;
  const BoxRange whole = BoxRange::whole(stored.shape);
  auto piece = stored.pieces.begin();
  for (int64_t begin = 0; begin < whole.numel;) {
    while (piece != stored.pieces.end() && piece->range.box == whole.box && piece->range.end() <= begin)
      ++piece;
    const bool is_flat = piece != stored.pieces.end() && piece->range.box == whole.box;
    const int64_t numel = std::min(most, (is_flat ? piece->range.end() : whole.numel) - begin);
    read_.resize(numel * item);
    reader_.read(tensor.stored, whole.part(begin, numel), read_.data());
    hand_out(tensor, stored.dtype, begin, update, sink);
    begin += numel;
  }
}

void TensorSource::read_frozen(const ExportedTensor& tensor, LowRankUpdate* update, const Sink& sink) {
  const Dtype dtype = frozen_->dtype();
  const int64_t item = itemsize(dtype), most = kMostBytes / item,
                all = hf::data_bytes(tensor.tensor) / itemsize(tensor.tensor.dtype);
  uint64_t fingerprint = 0;
  for (int64_t begin = 0; begin < all; begin += most) {
    const int64_t numel = std::min(most, all - begin);
    read_.clear();
    frozen_->read(tensor.left_out, begin, numel, read_);
    fingerprint += checkpoint::fingerprint_of(read_.data(), numel, item, begin);
    hand_out(tensor, dtype, begin, update, sink);
  }
  frozen_->require_same(tensor.left_out, fingerprint);
}

void TensorSource::hand_out(const ExportedTensor& tensor, Dtype dtype, int64_t begin, LowRankUpdate* update,
                            const Sink& sink) {
  if (update != nullptr) {
    merged_.clear();
    convert(std::exchange(dtype, Dtype::f32), read_, Dtype::f32, merged_, tensor.stored);
    read_.swap(merged_);
    update->add_to(begin, {reinterpret_cast<float*>(read_.data()), read_.size() / sizeof(float)});
  }
  converted_.clear();
  convert(dtype, read_, tensor.tensor.dtype, converted_, tensor.tensor.name);
  sink(converted_);
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

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>

#include "base/checked.h"
#include "base/shape_text.h"
#include "checkpoint/coverage.h"
#include "checkpoint/directory.h"
#include "checkpoint/file_io.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

bool is_utf8(const std::string& text) {
  try {
    return Json(text).dump().size() > 0;
  } catch (const Json::exception&) {
    return false;
  }
}

void check_pieces(std::span<const TensorPiece> pieces) {
  std::set<std::string> keys;
  for (const TensorPiece& piece : pieces) {
    require(!piece.name.empty() && is_utf8(piece.name), ErrorKind::Usage, "checkpoint piece",
            "its name is empty or not UTF-8");
    std::string place = "checkpoint piece " + in_quotes(piece_key(piece.name, piece.range));
    require(numel_of(piece.shape, piece.dtype).has_value(), ErrorKind::Usage, place,
            "its shape is negative or too large");
    require(piece.range.is_inside(piece.shape), ErrorKind::Usage, place,
            std::to_string(piece.range.numel) + " elements from there are outside the tensor of shape " +
                shape_text(piece.shape));
    if (piece.range.numel == 0) continue;
    require(piece.data != nullptr || piece.fill, ErrorKind::Usage, place, "it has no data");
    require(keys.insert(piece_key(piece.name, piece.range)).second, ErrorKind::Usage, place, "given twice");
  }
}

// The pieces that have elements, widest types first, so that every piece is aligned to its type.
std::vector<const TensorPiece*> in_file_order(std::span<const TensorPiece> pieces) {
  std::vector<const TensorPiece*> order;
  for (const TensorPiece& piece : pieces)
    if (piece.range.numel > 0) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(), [](const TensorPiece* a, const TensorPiece* b) {
    return itemsize(a->dtype) > itemsize(b->dtype);
  });
  return order;
}

std::vector<NewTensor> flat_tensors(const std::vector<const TensorPiece*>& order) {
  std::vector<NewTensor> tensors;
  tensors.reserve(order.size());
  for (const TensorPiece* piece : order)
    tensors.push_back({piece_key(piece->name, piece->range), piece->dtype, {piece->range.numel}});
  return tensors;
}

// Block by block, so that what was hashed is still in the cache when it is copied.
std::vector<uint64_t> write_hashed(BlockWriter& file, const TensorPiece& piece) {
  const int64_t bytes = piece.range.numel * itemsize(piece.dtype);
  std::vector<std::byte> made(piece.fill ? static_cast<size_t>(std::min(bytes, kChecksumBytes)) : 0);
  std::vector<uint64_t> checksums;
  for (int64_t begin = 0; begin < bytes; begin += kChecksumBytes) {
    const auto size = static_cast<size_t>(std::min(bytes - begin, kChecksumBytes));
    std::span<const std::byte> block;
    if (piece.fill) {
      piece.fill(begin, std::span(made).first(size));
      block = std::span(made).first(size);
    } else {
      block = {static_cast<const std::byte*>(piece.data) + begin, size};
    }
    checksums.push_back(checksums_of(block).front());
    file.add(block);
  }
  return checksums;
}

StoredTensor& tensor_of(std::map<std::string, StoredTensor>& tensors, const std::string& name, Dtype dtype,
                        const std::vector<int64_t>& shape, ErrorKind kind) {
  auto [known, is_new] = tensors.emplace(name, StoredTensor{dtype, shape, {}});
  require(is_new || (known->second.dtype == dtype && known->second.shape == shape), kind,
          "checkpoint tensor " + in_quotes(name), "its pieces disagree on dtype or shape");
  return known->second;
}

void sort_pieces(std::map<std::string, StoredTensor>& tensors) {
  for (auto& [name, tensor] : tensors)
    std::sort(tensor.pieces.begin(), tensor.pieces.end(),
              [](const StoredPiece& a, const StoredPiece& b) { return comes_before(a.range, b.range); });
}

Index merge(std::span<const ShardManifest> manifests) {
  Index index;
  for (const ShardManifest& manifest : manifests) {
    require(index.files.emplace(manifest.file, manifest.file_bytes).second, ErrorKind::Internal, "checkpoint",
            "two ranks wrote " + in_quotes(manifest.file));
    for (const auto& [name, tensor] : manifest.tensors) {
      StoredTensor& merged = tensor_of(index.tensors, name, tensor.dtype, tensor.shape, ErrorKind::Internal);
      merged.pieces.insert(merged.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
    }
  }
  sort_pieces(index.tensors);
  return index;
}

std::string canonical_metadata(const std::string& metadata) {
  try {
    return parse_object(metadata, "checkpoint metadata").dump();
  } catch (const Error& error) {
    fail(ErrorKind::Usage, "", error.what());
  }
}

void check_step(int64_t step) {
  require(step >= 0, ErrorKind::Usage, "checkpoint", "step " + std::to_string(step) + " is negative");
}

void check_files(const Index& index, const fs::path& temporary) {
  for (const auto& [name, bytes] : index.files) {
    int64_t found = File::open(temporary / name).identity().bytes;
    require(found == bytes, ErrorKind::Io, (temporary / name).string(),
            std::to_string(found) + " bytes, expected " + std::to_string(bytes));
  }
}

}  // namespace

fs::path CheckpointWriter::begin(const fs::path& directory, int64_t step) {
  check_step(step);
  std::error_code error;
  fs::create_directories(directory, error);
  fs::path temporary = temporary_path(directory, step, random_id());
  if (!error) fs::create_directory(temporary, error);
  if (error) {
    errno = error.value();
    fail_errno(directory, "create");
  }
  return temporary;
}

uint64_t CheckpointWriter::save_id(const fs::path& temporary) {
  auto name = parse_name(temporary.filename().string());
  require(name && name->save_id, ErrorKind::Usage, temporary.string(),
          "not the temporary directory of a save");
  return *name->save_id;
}

fs::path CheckpointWriter::temporary_path(const fs::path& directory, int64_t step, uint64_t save_id) {
  check_step(step);
  return directory / temporary_name(step, save_id);
}

ShardManifest CheckpointWriter::write_shard(const fs::path& temporary, int rank,
                                            std::span<const TensorPiece> pieces) {
  require(rank >= 0, ErrorKind::Usage, "checkpoint", "rank " + std::to_string(rank) + " is negative");
  check_pieces(pieces);
  auto order = in_file_order(pieces);
  std::string header =
      make_header(flat_tensors(order), {{"format", "zero"}, {"save_id", to_hex(save_id(temporary))}});

  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d.safetensors", rank);
  ShardManifest manifest{.file = name, .file_bytes = static_cast<int64_t>(header.size()), .tensors = {}};
  for (const TensorPiece* piece : order) manifest.file_bytes += piece->range.numel * itemsize(piece->dtype);
  for (const TensorPiece& piece : pieces)
    tensor_of(manifest.tensors, piece.name, piece.dtype, piece.shape, ErrorKind::Usage);

  require_free_space(temporary, manifest.file_bytes);
  fs::path path = temporary / name;
  BlockWriter file(path);
  try {
    file.add(std::as_bytes(std::span(header)));
    for (const TensorPiece* piece : order) {
      int64_t offset = file.position();
      auto checksums = write_hashed(file, *piece);
      manifest.tensors.at(piece->name)
          .pieces.push_back({manifest.file, piece->range, offset, std::move(checksums)});
    }
    file.finish();
  } catch (...) {
    std::error_code ignored;
    fs::remove(path, ignored);
    throw;
  }
  sort_pieces(manifest.tensors);
  return manifest;
}

fs::path CheckpointWriter::publish(const fs::path& temporary, const fs::path& directory, int64_t step,
                                   std::span<const ShardManifest> manifests, const std::string& metadata,
                                   int keep_last) {
  check_step(step);
  Index index = merge(manifests);
  index.step = step;
  index.save_id = save_id(temporary);
  index.metadata = canonical_metadata(metadata);
  check(index, ErrorKind::Internal, "checkpoint");
  check_files(index, temporary);
  write_text(temporary / kIndexName, checkpoint::to_text(index));
  sync_directory(temporary);
  fs::path published = directory / step_name(step);
  replace_directory(temporary, published);
  sync_directory(directory);
  clean(directory, published, keep_last);
  return published;
}

void CheckpointWriter::abandon(const fs::path& temporary) noexcept try {
  save_id(temporary);
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
} catch (...) {
  // Not a temporary directory: none of ours.
}

}  // namespace zero

#pragma once
// Sharded checkpoints: one safetensors file per rank and one index that maps every global tensor to its
// pieces. Bytes only: no tensors library, no ranks. docs/checkpoint_format.md describes the files.
//
// A checkpoint directory is published by its last step, a rename; a reader never sees half of one:
//   DIR/step-00000100.tmp-SAVEID/  ->  DIR/step-00000100/{rank-00000.safetensors, ..., index.json}
// SAVEID is random and stands in every file, so that files of two saves are never read as one.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/box.h"
#include "zero/dtype.h"

namespace zero {

/// A piece has a checksum for each block of so many bytes, counted from its first: a reader of a part checks
/// what it reads. Part of the format.
inline constexpr int64_t kChecksumBytes = int64_t{1} << 20;

/// What one rank holds of a global tensor: a box of it, or a range of a box' elements. Every element of a
/// tensor must be in exactly one piece of one rank; replicas write nothing. A piece without elements only
/// makes the tensor known.
struct TensorPiece {
  std::string name;  // global name, e.g. "model/h.0.ln_1.weight", "optimizer/exp_avg/h.0.ln_1.weight"
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;  // of the whole tensor, at most 64 dims
  BoxRange range;
  const void* data = nullptr;  // range.numel * itemsize bytes, row-major
  // Instead of data: writes the bytes from `begin_bytes` on into `out`. Asked in ascending order, for
  // kChecksumBytes at a time.
  std::function<void(int64_t begin_bytes, std::span<std::byte> out)> fill = {};
};

/// Where one piece lies on disk.
struct StoredPiece {
  std::string file;  // relative to the checkpoint directory
  BoxRange range;
  int64_t offset_bytes = 0;         // from the start of the file
  std::vector<uint64_t> checksums;  // XXH3 64 of each kChecksumBytes of the piece, the last ones fewer
};
struct StoredTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::vector<StoredPiece> pieces;  // by box, then by begin; disjoint, covering the tensor; none if empty
};

/// A piece whose bytes are not what the index says.
struct DamagedPiece {
  std::string tensor, file;
  BoxRange range;
  int64_t offset_bytes = 0;  // of the first bad block, in the file
  std::string problem;       // "checksum ..., the index says ..."
};

/// What one rank wrote; rank 0 collects these to make the index.
struct ShardManifest {
  std::string file;
  int64_t file_bytes = 0;
  std::map<std::string, StoredTensor> tensors;  // only this rank's pieces
};
/// As JSON text, to be sent to rank 0 and read back there. from_text throws Corrupt.
std::string to_text(const ShardManifest& manifest);
ShardManifest manifest_from_text(std::string_view text);

/// Steps of a save. On several ranks: rank 0 begins and tells the others the save id; every rank writes; rank
/// 0 collects the manifests and publishes. After an error on any rank, rank 0 abandons. Functions keep no
/// state.
class CheckpointWriter {
 public:
  /// Makes `directory` if needed and the temporary directory in it, with a new random save id. Throws Io.
  static std::filesystem::path begin(const std::filesystem::path& directory, int64_t step);
  /// The id that begin() chose, and the same path from it on another rank. Throws Usage for any other name.
  static uint64_t save_id(const std::filesystem::path& temporary);
  static std::filesystem::path temporary_path(const std::filesystem::path& directory, int64_t step,
                                              uint64_t save_id);

  /// Writes `rank-RRRRR.safetensors` with fsync; the file is a valid safetensors file whose tensors are 1-D
  /// pieces named "NAME[0:3,2:4]@BEGIN". Pieces are written straight from their memory, which must stay
  /// unchanged. Checks them and the free space first. Throws Usage naming the piece, Io naming the file and
  /// the cause; no file is left then.
  static ShardManifest write_shard(const std::filesystem::path& temporary, int rank,
                                   std::span<const TensorPiece> pieces);

  /// Checks that the pieces cover every tensor exactly once (Internal otherwise), writes index.json with
  /// `metadata` (a JSON object as text, Usage otherwise), fsyncs, renames to DIRECTORY/step-NNNNNNNN, fsyncs
  /// the directory. An existing checkpoint of that step is replaced only after the new one is complete.
  /// Throws Io; everything published before is intact then. Then removes all but the newest `keep_last` (0 =
  /// all; the new one always stays) and temporaries of earlier saves; what cannot be removed is tried again
  /// by the next save.
  static std::filesystem::path publish(const std::filesystem::path& temporary,
                                       const std::filesystem::path& directory, int64_t step,
                                       std::span<const ShardManifest> manifests, const std::string& metadata,
                                       int keep_last);

  /// Removes a temporary directory after a failed save. Never throws, never touches anything else.
  static void abandon(const std::filesystem::path& temporary) noexcept;
};

/// The newest complete checkpoint in a directory (highest step): its path, or empty, also where the directory
/// is missing. Throws Io where it cannot be read.
std::filesystem::path latest_checkpoint(const std::filesystem::path& directory);

/// Reads any range of any box of any tensor, whatever the world that wrote it. Thread safe after
/// construction.
class CheckpointReader {
 public:
  /// Opens one step's directory. Checks the index completely (sizes, bounds, overlaps, coverage, file
  /// lengths, headers) before anything is read. Throws Io or Corrupt naming file and tensor.
  explicit CheckpointReader(std::filesystem::path checkpoint);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;

  const std::map<std::string, StoredTensor>& tensors() const;
  /// The JSON object given at publish(), as text.
  const std::string& metadata() const;
  int64_t step() const;
  /// Copies a range of a box of a tensor, in row-major order of the box. Reads the blocks of kChecksumBytes
  /// that hold some of it and no others, each once and one at a time, and checks all of them. Throws Corrupt
  /// naming file and tensor; Usage for an unknown name or a range outside it. After an error `out` holds
  /// anything. Fastest in the order of the files: the system then fetches ahead.
  void read(const std::string& name, const BoxRange& range, void* out) const;
  /// The bytes of a tensor where the system keeps its file: pages that nobody may write to, shared with
  /// everybody who maps them and let go of when memory is short. As long as the result lives; the file may
  /// not become shorter meanwhile. Null for a tensor in several pieces, which lie one behind the other
  /// nowhere, and for one without elements. Nothing is checked: see check(). Throws as read().
  std::shared_ptr<const std::byte> map(const std::string& name) const;
  /// Reads all pieces of a tensor, a block at a time, and keeps none of it. Throws as read().
  void check(const std::string& name) const;
  /// Bytes of tensors read from files so far; of mapped ones those that check() has read.
  int64_t bytes_read() const;
  /// Lengths of the files, by name; the index is not among them.
  const std::map<std::string, int64_t>& files() const;
  /// Reads all pieces, in the files' order, and returns those with a wrong checksum. Throws Io for what the
  /// system cannot read, Corrupt for a file that has changed since it was opened.
  std::vector<DamagedPiece> find_damage() const;
  /// Throws Corrupt naming the first of them.
  void verify() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero

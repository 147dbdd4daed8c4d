#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/shape_text.h"
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

constexpr int64_t kReadBytes = int64_t{1} << 20;   // at a time: checked while it is still in the cache
constexpr int64_t kAheadBytes = int64_t{8} << 20;  // fetched at once where reading jumps
constexpr size_t kMostOpenFiles = 64;
static_assert(kReadBytes % kChecksumBytes == 0);

/// A file that stays open from one read to the next: the system fetches ahead of a descriptor that is read in
/// order, so that the disk works while what came before is checked.
struct OpenFile {
  explicit OpenFile(File opened) : file(std::move(opened)) { file.expect_reads_in_order(); }
  File file;
  std::atomic<int64_t> next = 0;  // byte behind the last read
};

/// One piece of one tensor.
struct PieceOf {
  const std::string& tensor;
  const StoredPiece& piece;
  int64_t item;   // bytes of an element
  int64_t bytes;  // of the piece
};

PieceOf piece_of(const std::string& name, const StoredTensor& tensor, const StoredPiece& piece) {
  const int64_t item = itemsize(tensor.dtype);
  return {name, piece, item, piece.range.numel * item};
}

}  // namespace

struct CheckpointReader::State {
  fs::path directory;
  Index index;
  std::map<std::string, File::Identity> identities;

  void check_name() const;
  void check_file(const std::string& name, int64_t bytes);
  void check_headers();
  std::shared_ptr<OpenFile> open(const std::string& name) const;
  void read_runs(const PieceOf& of, CommonRuns runs, std::vector<std::byte>& room, std::byte* out) const;
  std::optional<DamagedPiece> check_piece(const PieceOf& of, std::span<std::byte> buffer) const;
  const StoredTensor& find(const std::string& name) const;
  std::string place_of(const std::string& name) const;

  void require_good(const std::optional<DamagedPiece>& damage) const;

  mutable std::atomic<int64_t> bytes_read = 0;

 private:
  [[noreturn]] void fail_short(const fs::path& path, int64_t bytes, int64_t expected) const;
  void read_at(OpenFile& file, int64_t offset, std::span<std::byte> out) const;
  std::optional<DamagedPiece> check_blocks(const PieceOf& of, int64_t begin,
                                           std::span<const std::byte> bytes) const;
  std::map<std::string, Header> headers_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<OpenFile>> open_files_;  // under mutex_
};

// Under another step's name it would count as that step: as the newest one, or as too old to keep.
void CheckpointReader::State::check_name() const {
  const fs::path name = directory.has_filename() ? directory.filename() : directory.parent_path().filename();
  const auto named = parse_name(name.string());
  require(!named || named->save_id || named->step == index.step, ErrorKind::Corrupt, directory.string(),
          "its name is another step's, its index says step " + std::to_string(index.step),
          "give it its name " + step_name(index.step) + " again");
}

void CheckpointReader::State::check_file(const std::string& name, int64_t bytes) {
  fs::path path = directory / name;
  File file = File::open(path);
  File::Identity identity = file.identity();
  if (identity.bytes != bytes) fail_short(path, identity.bytes, bytes);
  Header header = read_header(file, path);
  const std::string in_header = path.string() + ": header";
  require(header.metadata.is_object(), ErrorKind::Corrupt, in_header, "it has no __metadata__");
  const uint64_t save_id = JsonPlace(header.metadata, in_header)["save_id"].hex64();
  require(save_id == index.save_id, ErrorKind::Corrupt, path.string(),
          "it belongs to save " + to_hex(save_id) + ", the index to save " + to_hex(index.save_id),
          "files of two saves are mixed; use another checkpoint");
  identities.emplace(name, identity);
  headers_.emplace(name, std::move(header));
}

// Of a file that was cut, names the first tensor that is gone.
void CheckpointReader::State::fail_short(const fs::path& path, int64_t bytes, int64_t expected) const {
  std::string problem = std::to_string(bytes) + " bytes, the index says " + std::to_string(expected);
  const std::string file = path.filename().string();
  const std::string* lost = nullptr;
  int64_t first = expected;
  for (const auto& [name, tensor] : index.tensors)
    for (const StoredPiece& piece : tensor.pieces) {
      bool is_cut =
          piece.file == file && piece.offset_bytes + piece.range.numel * itemsize(tensor.dtype) > bytes;
      if (!is_cut || piece.offset_bytes > first) continue;
      first = piece.offset_bytes;
      lost = &name;
    }
  if (bytes < expected && lost) problem += "; lost from tensor " + in_quotes(*lost) + " on";
  fail(ErrorKind::Corrupt, path.string(), problem, "use another checkpoint");
}

void CheckpointReader::State::check_headers() {
  for (const auto& [name, bytes] : index.files) check_file(name, bytes);
  std::map<std::string, size_t> used;
  for (const auto& [name, tensor] : index.tensors)
    for (const StoredPiece& piece : tensor.pieces) {
      const Header& header = headers_.at(piece.file);
      auto entry = header.tensors.find(piece_key(name, piece.range));
      bool same = entry != header.tensors.end() && entry->second.dtype == tensor.dtype &&
                  entry->second.shape == std::vector{piece.range.numel} &&
                  entry->second.begin_byte == piece.offset_bytes;
      require(same, ErrorKind::Corrupt, (directory / piece.file).string(),
              "its header and the index disagree on tensor " + in_quotes(name) + ", piece " +
                  piece_label(piece.range));
      ++used[piece.file];
    }
  for (const auto& [name, header] : headers_)
    require(used[name] == header.tensors.size(), ErrorKind::Corrupt, (directory / name).string(),
            "it holds " + std::to_string(header.tensors.size()) + " tensors, the index knows " +
                std::to_string(used[name]));
  headers_.clear();
}

std::shared_ptr<OpenFile> CheckpointReader::State::open(const std::string& name) const {
  std::shared_ptr<OpenFile> file;
  {
    const std::lock_guard lock(mutex_);
    if (!open_files_.contains(name) && open_files_.size() >= kMostOpenFiles) open_files_.clear();
    std::shared_ptr<OpenFile>& known = open_files_[name];
    if (!known) known = std::make_shared<OpenFile>(File::open(directory / name));
    file = known;
  }
  require(file->file.identity() == identities.at(name), ErrorKind::Corrupt, (directory / name).string(),
          "the file changed while the checkpoint was open", "open the checkpoint again");
  return file;
}

void CheckpointReader::State::read_at(OpenFile& file, int64_t offset, std::span<std::byte> out) const {
  file.file.read_at(offset, out);
  const auto bytes = static_cast<int64_t>(out.size());
  file.next = offset + bytes;
  bytes_read += bytes;
}

// `bytes` are whole blocks of the piece, from byte `begin` of it.
std::optional<DamagedPiece> CheckpointReader::State::check_blocks(const PieceOf& of, int64_t begin,
                                                                  std::span<const std::byte> bytes) const {
  std::vector<uint64_t> found = checksums_of(bytes);
  int64_t first = begin / kChecksumBytes;
  for (size_t i = 0; i < found.size(); ++i) {
    uint64_t expected = of.piece.checksums[first + i];
    if (found[i] == expected) continue;
    return DamagedPiece{
        .tensor = of.tensor,
        .file = of.piece.file,
        .range = of.piece.range,
        .offset_bytes = of.piece.offset_bytes + begin + static_cast<int64_t>(i) * kChecksumBytes,
        .problem = "checksum " + to_hex(found[i]) + ", the index says " + to_hex(expected)};
  }
  return std::nullopt;
}

void CheckpointReader::State::require_good(const std::optional<DamagedPiece>& damage) const {
  if (!damage) return;
  fail(ErrorKind::Corrupt, (directory / damage->file).string(),
       "tensor " + in_quotes(damage->tensor) + ", piece " + piece_label(damage->range) + ", at byte " +
           std::to_string(damage->offset_bytes) + " of the file: " + damage->problem,
       "use another checkpoint");
}

std::string CheckpointReader::State::place_of(const std::string& name) const {
  return directory.string() + ": tensor " + in_quotes(name);
}

const StoredTensor& CheckpointReader::State::find(const std::string& name) const {
  const auto found = index.tensors.find(name);
  require(found != index.tensors.end(), ErrorKind::Usage, place_of(name), "the checkpoint does not have it");
  return found->second;
}

// Of a run of a piece, whole blocks go straight to their place, others by way of `room`: one at a time, and
// once, since runs ascend.
void CheckpointReader::State::read_runs(const PieceOf& of, CommonRuns runs, std::vector<std::byte>& room,
                                        std::byte* out) const {
  const std::shared_ptr<OpenFile> file = open(of.piece.file);
  const int64_t wanted = runs.numel() * of.item;
  int64_t in_room = -1;  // byte of the piece where the block in `room` begins
  bool is_first = true;
  while (const auto run = runs.next()) {
    const int64_t from = run->from_a * of.item, to = from + run->numel * of.item;
    std::byte* target = out + run->from_b * of.item;
    if (std::exchange(is_first, false) && file->next != of.piece.offset_bytes + from)
      file->file.read_ahead(of.piece.offset_bytes + from, std::min(kAheadBytes, wanted));
    for (int64_t at = from; at < to;) {
      const int64_t begin = at / kChecksumBytes * kChecksumBytes,
                    end = std::min(begin + kChecksumBytes, of.bytes), stop = std::min(end, to);
      const bool straight = at == begin && end <= to;
      if (begin != in_room) {
        if (!straight) room.resize(end - begin);
        const auto block = straight ? std::span(target + (at - from), end - begin) : std::span(room);
        read_at(*file, of.piece.offset_bytes + begin, block);
        require_good(check_blocks(of, begin, block));
        if (!straight) in_room = begin;
      }
      if (!straight) std::memcpy(target + (at - from), room.data() + (at - begin), stop - at);
      at = stop;
    }
  }
}

std::optional<DamagedPiece> CheckpointReader::State::check_piece(const PieceOf& of,
                                                                 std::span<std::byte> buffer) const {
  const std::shared_ptr<OpenFile> file = open(of.piece.file);
  for (int64_t begin = 0; begin < of.bytes; begin += kReadBytes) {
    auto part = buffer.first(std::min(kReadBytes, of.bytes - begin));
    read_at(*file, of.piece.offset_bytes + begin, part);
    if (auto damage = check_blocks(of, begin, part)) return damage;
  }
  return std::nullopt;
}

CheckpointReader::CheckpointReader(fs::path checkpoint) : state_(std::make_unique<State>()) {
  state_->directory = std::move(checkpoint);
  fs::path index = state_->directory / kIndexName;
  state_->index = index_from_text(read_text(index, kMostIndexBytes), index.string());
  state_->check_name();
  state_->check_headers();
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

const std::map<std::string, StoredTensor>& CheckpointReader::tensors() const { return state_->index.tensors; }
const std::string& CheckpointReader::metadata() const { return state_->index.metadata; }
int64_t CheckpointReader::step() const { return state_->index.step; }
int64_t CheckpointReader::bytes_read() const { return state_->bytes_read; }
const std::map<std::string, int64_t>& CheckpointReader::files() const { return state_->index.files; }

void CheckpointReader::read(const std::string& name, const BoxRange& range, void* out) const {
  const StoredTensor& tensor = state_->find(name);
  require(range.is_inside(tensor.shape), ErrorKind::Usage, state_->place_of(name),
          std::to_string(range.numel) + " elements from " + piece_label(range) + " are outside its shape " +
              shape_text(tensor.shape));
  std::vector<std::byte> room;
  // Box by box: of the pieces of one, in order, those before the first common element are passed by.
  for (auto piece = tensor.pieces.begin(); piece != tensor.pieces.end();) {
    const Box& box = piece->range.box;
    const auto end =
        std::upper_bound(piece, tensor.pieces.end(), box,
                         [](const Box& wanted, const StoredPiece& p) { return wanted < p.range.box; });
    CommonRuns common(BoxRange::all_of(box), range);
    int64_t left = common.numel();
    if (const auto first = common.next())
      piece = std::upper_bound(piece, end, first->from_a,
                               [](int64_t element, const StoredPiece& p) { return element < p.range.end(); });
    for (; left > 0 && piece != end; ++piece) {
      const CommonRuns runs(piece->range, range);
      left -= runs.numel();
      if (runs.numel() > 0)
        state_->read_runs(piece_of(name, tensor, *piece), runs, room, static_cast<std::byte*>(out));
    }
    piece = end;
  }
}

std::shared_ptr<const std::byte> CheckpointReader::map(const std::string& name) const {
  const StoredTensor& tensor = state_->find(name);
  if (tensor.pieces.size() != 1) return nullptr;
  const PieceOf of = piece_of(name, tensor, tensor.pieces.front());
  return state_->open(of.piece.file)->file.map(of.piece.offset_bytes, of.bytes);
}

void CheckpointReader::check(const std::string& name) const {
  const StoredTensor& tensor = state_->find(name);
  std::vector<std::byte> buffer(kReadBytes);
  for (const StoredPiece& piece : tensor.pieces)
    state_->require_good(state_->check_piece(piece_of(name, tensor, piece), buffer));
}

std::vector<DamagedPiece> CheckpointReader::find_damage() const {
  std::vector<PieceOf> pieces;
  for (const auto& [name, tensor] : tensors())
    for (const StoredPiece& piece : tensor.pieces) pieces.push_back(piece_of(name, tensor, piece));
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  auto place = [&](size_t i) { return std::tie(pieces[i].piece.file, pieces[i].piece.offset_bytes); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  std::vector<std::byte> buffer(kReadBytes);
  std::vector<DamagedPiece> damaged;
  for (size_t i : order)
    if (auto damage = state_->check_piece(pieces[i], buffer)) damaged.push_back(std::move(*damage));
  return damaged;
}

void CheckpointReader::verify() const {
  auto damaged = find_damage();
  if (!damaged.empty()) state_->require_good(damaged.front());
}

}  // namespace zero

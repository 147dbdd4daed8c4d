#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

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
  int64_t bytes;  // of the piece
};

}  // namespace

struct CheckpointReader::State {
  fs::path directory;
  Index index;
  std::map<std::string, File::Identity> identities;

  void check_name() const;
  void check_file(const std::string& name, int64_t bytes);
  void check_headers();
  std::shared_ptr<OpenFile> open(const std::string& name) const;
  void read_piece(const PieceOf& of, int64_t from, int64_t to, std::byte* out) const;
  std::optional<DamagedPiece> check_piece(const PieceOf& of, std::span<std::byte> buffer) const;

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
  require(header.save_id == index.save_id, ErrorKind::Corrupt, path.string(),
          "it belongs to save " + to_hex(header.save_id) + ", the index to save " + to_hex(index.save_id),
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
      bool is_cut = piece.file == file && piece.offset_bytes + piece.numel * itemsize(tensor.dtype) > bytes;
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
      auto entry = header.entries.find(piece_key(name, piece.begin));
      bool same = entry != header.entries.end() && entry->second.dtype == tensor.dtype &&
                  entry->second.numel == piece.numel &&
                  header.data_begin + entry->second.begin_byte == piece.offset_bytes;
      require(same, ErrorKind::Corrupt, (directory / piece.file).string(),
              "its header and the index disagree on tensor " + in_quotes(name) + " from element " +
                  std::to_string(piece.begin));
      ++used[piece.file];
    }
  for (const auto& [name, header] : headers_)
    require(used[name] == header.entries.size(), ErrorKind::Corrupt, (directory / name).string(),
            "it holds " + std::to_string(header.entries.size()) + " tensors, the index knows " +
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
    uint64_t expected = of.piece.checksums[static_cast<size_t>(first) + i];
    if (found[i] == expected) continue;
    return DamagedPiece{
        .tensor = of.tensor,
        .file = of.piece.file,
        .begin = of.piece.begin,
        .numel = of.piece.numel,
        .offset_bytes = of.piece.offset_bytes + begin + static_cast<int64_t>(i) * kChecksumBytes,
        .problem = "checksum " + to_hex(found[i]) + ", the index says " + to_hex(expected)};
  }
  return std::nullopt;
}

void CheckpointReader::State::require_good(const std::optional<DamagedPiece>& damage) const {
  if (!damage) return;
  fail(ErrorKind::Corrupt, (directory / damage->file).string(),
       "tensor " + in_quotes(damage->tensor) + " from element " + std::to_string(damage->begin) +
           ", at byte " + std::to_string(damage->offset_bytes) + " of the file: " + damage->problem,
       "use another checkpoint");
}

// Bytes [from, to) of a piece. Whole blocks go straight to their place, others by way of `block`.
void CheckpointReader::State::read_piece(const PieceOf& of, int64_t from, int64_t to, std::byte* out) const {
  const std::shared_ptr<OpenFile> file = open(of.piece.file);
  if (file->next != of.piece.offset_bytes + from)
    file->file.read_ahead(of.piece.offset_bytes + from, std::min(kAheadBytes, to - from));
  std::vector<std::byte> block;
  for (int64_t at = from; at < to;) {
    int64_t begin = at / kChecksumBytes * kChecksumBytes, end = std::min(begin + kChecksumBytes, of.bytes);
    std::byte* target = out + (at - from);
    if (at == begin && end <= to) {
      end = std::min(to == of.bytes ? to : to / kChecksumBytes * kChecksumBytes, begin + kReadBytes);
      std::span<std::byte> whole(target, static_cast<size_t>(end - begin));
      read_at(*file, of.piece.offset_bytes + begin, whole);
      require_good(check_blocks(of, begin, whole));
      at = end;
    } else {
      block.resize(static_cast<size_t>(end - begin));
      read_at(*file, of.piece.offset_bytes + begin, block);
      require_good(check_blocks(of, begin, block));
      int64_t next = std::min(end, to);
      std::memcpy(target, block.data() + (at - begin), static_cast<size_t>(next - at));
      at = next;
    }
  }
}

std::optional<DamagedPiece> CheckpointReader::State::check_piece(const PieceOf& of,
                                                                 std::span<std::byte> buffer) const {
  const std::shared_ptr<OpenFile> file = open(of.piece.file);
  for (int64_t begin = 0; begin < of.bytes; begin += kReadBytes) {
    auto part = buffer.first(static_cast<size_t>(std::min(kReadBytes, of.bytes - begin)));
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

void CheckpointReader::read(const std::string& name, int64_t begin, int64_t numel, void* out) const {
  std::string place = state_->directory.string() + ": tensor " + in_quotes(name);
  auto found = state_->index.tensors.find(name);
  require(found != state_->index.tensors.end(), ErrorKind::Usage, place, "the checkpoint does not have it");
  const StoredTensor& tensor = found->second;
  int64_t total = tensor.pieces.empty() ? 0 : tensor.pieces.back().begin + tensor.pieces.back().numel;
  require(begin >= 0 && numel >= 0 && begin <= total && numel <= total - begin, ErrorKind::Usage, place,
          std::to_string(numel) + " elements from " + std::to_string(begin) + " are outside its " +
              std::to_string(total));
  int64_t end = begin + numel;
  auto piece =
      std::upper_bound(tensor.pieces.begin(), tensor.pieces.end(), begin,
                       [](int64_t element, const StoredPiece& p) { return element < p.begin + p.numel; });
  for (; piece != tensor.pieces.end() && piece->begin < end; ++piece) {
    int64_t from = std::max(begin, piece->begin), to = std::min(end, piece->begin + piece->numel);
    int64_t item = itemsize(tensor.dtype);
    state_->read_piece({name, *piece, piece->numel * item}, (from - piece->begin) * item,
                       (to - piece->begin) * item, static_cast<std::byte*>(out) + (from - begin) * item);
  }
}

std::vector<DamagedPiece> CheckpointReader::find_damage() const {
  std::vector<PieceOf> pieces;
  for (const auto& [name, tensor] : tensors())
    for (const StoredPiece& piece : tensor.pieces)
      pieces.push_back({name, piece, piece.numel * itemsize(tensor.dtype)});
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  auto place = [&](size_t i) { return std::tie(pieces[i].piece.file, pieces[i].piece.offset_bytes); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  std::vector<std::byte> buffer(static_cast<size_t>(kReadBytes));
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

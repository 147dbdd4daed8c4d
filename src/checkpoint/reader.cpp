#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "checkpoint/file_io.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

constexpr int64_t kVerifyBytes = 4 << 20;

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    if (!state_) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace

struct CheckpointReader::State {
  fs::path directory;
  Index index;
  std::map<std::string, File::Identity> identities;

  void check_file(const std::string& name, int64_t bytes);
  void check_headers();
  File open(const std::string& name) const;
  void check_hash(const std::string& tensor, const StoredPiece& piece, const Hash& hash) const;
  void read_piece(const std::string& name, const StoredTensor& tensor, const StoredPiece& piece,
                  int64_t begin, int64_t numel, std::byte* out) const;
  void verify_piece(const std::string& name, const StoredTensor& tensor, const StoredPiece& piece,
                    std::vector<std::byte>& buffer) const;

 private:
  std::map<std::string, Header> headers_;
};

void CheckpointReader::State::check_file(const std::string& name, int64_t bytes) {
  fs::path path = directory / name;
  File file = File::open(path);
  File::Identity identity = file.identity();
  require(identity.bytes == bytes, ErrorKind::Corrupt, path.string(),
          std::to_string(identity.bytes) + " bytes, the index says " + std::to_string(bytes),
          "use another checkpoint");
  Header header = read_header(file, path);
  require(header.save_id == index.save_id, ErrorKind::Corrupt, path.string(),
          "it belongs to save " + to_hex(header.save_id) + ", the index to save " + to_hex(index.save_id),
          "files of two saves are mixed; use another checkpoint");
  identities.emplace(name, identity);
  headers_.emplace(name, std::move(header));
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

File CheckpointReader::State::open(const std::string& name) const {
  File file = File::open(directory / name);
  require(file.identity() == identities.at(name), ErrorKind::Corrupt, (directory / name).string(),
          "the file changed while the checkpoint was open", "open the checkpoint again");
  return file;
}

void CheckpointReader::State::check_hash(const std::string& tensor, const StoredPiece& piece,
                                         const Hash& hash) const {
  require(hash.digest() == piece.checksum, ErrorKind::Corrupt, (directory / piece.file).string(),
          "tensor " + in_quotes(tensor) + " from element " + std::to_string(piece.begin) + ": checksum " +
              to_hex(hash.digest()) + ", the index says " + to_hex(piece.checksum),
          "use another checkpoint");
}

void CheckpointReader::State::read_piece(const std::string& name, const StoredTensor& tensor,
                                         const StoredPiece& piece, int64_t begin, int64_t numel,
                                         std::byte* out) const {
  int64_t item = itemsize(tensor.dtype);
  std::span<std::byte> bytes(out, static_cast<size_t>(numel * item));
  open(piece.file).read_at(piece.offset_bytes + (begin - piece.begin) * item, bytes);
  if (numel != piece.numel) return;
  Hash hash;
  hash.add(bytes);
  check_hash(name, piece, hash);
}

void CheckpointReader::State::verify_piece(const std::string& name, const StoredTensor& tensor,
                                           const StoredPiece& piece, std::vector<std::byte>& buffer) const {
  File file = open(piece.file);
  Hash hash;
  int64_t offset = piece.offset_bytes, end = offset + piece.numel * itemsize(tensor.dtype);
  while (offset < end) {
    auto chunk = std::span(buffer).first(static_cast<size_t>(std::min(kVerifyBytes, end - offset)));
    file.read_at(offset, chunk);
    hash.add(chunk);
    offset += static_cast<int64_t>(chunk.size());
  }
  check_hash(name, piece, hash);
}

CheckpointReader::CheckpointReader(fs::path checkpoint) : state_(std::make_unique<State>()) {
  state_->directory = std::move(checkpoint);
  fs::path index = state_->directory / kIndexName;
  state_->index = index_from_text(read_text(index, kMostIndexBytes), index.string());
  state_->check_headers();
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

const std::map<std::string, StoredTensor>& CheckpointReader::tensors() const { return state_->index.tensors; }
const std::string& CheckpointReader::metadata() const { return state_->index.metadata; }
int64_t CheckpointReader::step() const { return state_->index.step; }

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
    std::byte* target = static_cast<std::byte*>(out) + (from - begin) * itemsize(tensor.dtype);
    state_->read_piece(name, tensor, *piece, from, to - from, target);
  }
}

void CheckpointReader::verify() const {
  std::vector<std::byte> buffer(static_cast<size_t>(kVerifyBytes));
  for (const auto& [name, tensor] : tensors())
    for (const StoredPiece& piece : tensor.pieces) state_->verify_piece(name, tensor, piece, buffer);
}

}  // namespace zero

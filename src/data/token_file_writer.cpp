#include <xxhash.h>

#include <cstring>

#include "base/output_file.h"
#include "data/token_header.h"
#include "zero/error.h"
#include "zero/token_file.h"

namespace zero {
namespace {

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

constexpr size_t kPiece = 1 << 16;
constexpr OutputKind kTokenFile = {.name = "a token file", .is = [](std::string_view head) {
                                     return head.starts_with({data::kMagic, sizeof(data::kMagic)});
                                   }};

}  // namespace

struct TokenFileWriter::Impl {
  Impl(std::filesystem::path path, const Vocabulary& v)
      : file(std::move(path), &kTokenFile), vocabulary(v), hash(XXH3_createState()) {
    require(hash != nullptr, ErrorKind::Internal, file.path().string(), "xxhash has no memory");
    XXH3_64bits_reset(hash.get());
  }

  OutputFile file;
  Vocabulary vocabulary;
  std::unique_ptr<XXH3_state_t, FreeHash> hash;
  std::vector<std::byte> packed;
  int64_t count = 0;
  bool finished = false;

  uint32_t width() const { return vocabulary.size <= data::kMostOfTwoBytes ? 2 : 4; }
  template <class Token>
  void append(std::span<const int32_t> ids);
};

template <class Token>
void TokenFileWriter::Impl::append(std::span<const int32_t> ids) {
  packed.resize(ids.size() * sizeof(Token));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary.size) {
      fail(ErrorKind::Usage, file.path().string(),
           "id " + std::to_string(ids[i]) + " is not in a vocabulary of " + std::to_string(vocabulary.size));
    }
    const auto token = static_cast<Token>(ids[i]);
    std::memcpy(packed.data() + i * sizeof(Token), &token, sizeof(Token));
  }
  XXH3_64bits_update(hash.get(), packed.data(), packed.size());
  file.append(packed);
  count += static_cast<int64_t>(ids.size());
}

TokenFileWriter::TokenFileWriter(std::filesystem::path path, const Vocabulary& vocabulary) {
  require(vocabulary.size > 0 && vocabulary.size <= std::numeric_limits<int32_t>::max(), ErrorKind::Usage,
          path.string(), "a vocabulary of " + std::to_string(vocabulary.size) + " tokens");
  impl_ = std::make_unique<Impl>(std::move(path), vocabulary);
  const data::TokenHeader room{};
  impl_->file.append(std::as_bytes(std::span(&room, 1)));
}

TokenFileWriter::~TokenFileWriter() = default;
TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;
TokenFileWriter& TokenFileWriter::operator=(TokenFileWriter&&) noexcept = default;

void TokenFileWriter::append(std::span<const int32_t> ids) {
  require(!impl_->finished, ErrorKind::Usage, impl_->file.path().string(), "append after finish");
  for (size_t at = 0; at < ids.size(); at += kPiece) {
    const auto piece = ids.subspan(at, std::min(kPiece, ids.size() - at));
    impl_->width() == 2 ? impl_->append<uint16_t>(piece) : impl_->append<uint32_t>(piece);
  }
}

int64_t TokenFileWriter::size() const { return impl_->count; }

void TokenFileWriter::finish() {
  if (impl_->finished) return;
  impl_->finished = true;
  data::TokenHeader header{};
  std::memcpy(header.magic, data::kMagic, sizeof(header.magic));
  header.version = data::kVersion;
  header.byte_order = data::kByteOrder;
  header.width = impl_->width();
  header.count = static_cast<uint64_t>(impl_->count);
  header.vocab_size = static_cast<uint64_t>(impl_->vocabulary.size);
  header.vocab_fingerprint = impl_->vocabulary.fingerprint;
  header.payload_checksum = XXH3_64bits_digest(impl_->hash.get());
  header.header_checksum = XXH3_64bits(&header, offsetof(data::TokenHeader, header_checksum));
  impl_->file.write_at(0, std::as_bytes(std::span(&header, 1)));
  impl_->file.close();
}

void TokenFileWriter::publish() {
  finish();
  impl_->file.publish();
}

}  // namespace zero

#include "zero/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "data/token_header.h"
#include "zero/error.h"

namespace zero {
namespace {

using data::TokenHeader;

std::string hexadecimal(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

std::string described(const Vocabulary& vocabulary) {
  return std::to_string(vocabulary.size) + " tokens, fingerprint " + hexadecimal(vocabulary.fingerprint);
}

// Closes a descriptor when done with it; a mapping lives on without.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

void check_header(const TokenHeader& header, const std::string& place) {
  require(std::memcmp(header.magic, data::kMagic, sizeof(header.magic)) == 0, ErrorKind::Corrupt, place,
          "it is no token file", "make one with zero tokenize");
  require(header.byte_order != data::kOtherByteOrder, ErrorKind::Unsupported, place,
          "it was written on a machine of the other byte order", "tokenize the text on this kind of machine");
  require(header.version == data::kVersion, ErrorKind::Unsupported, place,
          "it has version " + std::to_string(header.version) + ", this program reads version " +
              std::to_string(data::kVersion));
  const uint64_t checksum = XXH3_64bits(&header, offsetof(TokenHeader, header_checksum));
  require(checksum == header.header_checksum, ErrorKind::Corrupt, place,
          "its header has checksum " + hexadecimal(checksum) + ", expected " +
              hexadecimal(header.header_checksum));
  const bool sane = header.byte_order == data::kByteOrder && (header.width == 2 || header.width == 4) &&
                    header.vocab_size > 0 && header.vocab_size <= std::numeric_limits<int32_t>::max() &&
                    (header.width == 4 || header.vocab_size <= data::kMostOfTwoBytes) &&
                    header.count <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / 8;
  require(sane, ErrorKind::Corrupt, place, "its header holds values that make no sense");
}

template <class Token>
void copy_tokens(std::span<const Token> tokens, std::span<int32_t> out, int64_t first,
                 const TokenFile& file) {
  for (size_t i = 0; i < out.size(); ++i) {
    if (tokens[i] >= static_cast<uint64_t>(file.vocabulary().size)) {
      fail(ErrorKind::Corrupt, file.path().string(),
           "token " + std::to_string(first + static_cast<int64_t>(i)) + " is " + std::to_string(tokens[i]) +
               ", outside of its vocabulary of " + std::to_string(file.vocabulary().size),
           "tokenize the text again");
    }
    out[i] = static_cast<int32_t>(tokens[i]);
  }
}

}  // namespace

struct TokenFile::Impl {
  std::filesystem::path path;
  TokenHeader header{};
  Vocabulary vocabulary;
  void* map = MAP_FAILED;
  size_t map_bytes = 0;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (map != MAP_FAILED) ::munmap(map, map_bytes);
  }

  const std::byte* payload() const { return static_cast<const std::byte*>(map) + sizeof(TokenHeader); }
  size_t payload_bytes() const { return header.count * header.width; }
};

TokenFile TokenFile::open(const std::filesystem::path& path) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  const std::string place = path.string();
  const auto refused = [&](const char* what) {
    fail(ErrorKind::Io, place, std::string("cannot ") + what + " it: " + std::strerror(errno));
  };
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) refused("open");
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) refused("examine");
  require(S_ISREG(status.st_mode), ErrorKind::Io, place, "it is not a regular file");
  const auto found = static_cast<uint64_t>(status.st_size);
  require(found >= sizeof(TokenHeader), ErrorKind::Corrupt, place,
          "expected a token file's header of 64 bytes, found " + std::to_string(found) + " bytes",
          "make a token file with zero tokenize");
  impl->map = ::mmap(nullptr, found, PROT_READ, MAP_SHARED, file.fd, 0);
  if (impl->map == MAP_FAILED) refused("map");
  impl->map_bytes = found;
  std::memcpy(&impl->header, impl->map, sizeof(TokenHeader));
  check_header(impl->header, place);
  const uint64_t expected = sizeof(TokenHeader) + impl->payload_bytes();
  require(found == expected, ErrorKind::Corrupt, place,
          "expected " + std::to_string(expected) + " bytes, found " + std::to_string(found) +
              (found < expected ? ": it is cut off" : ": something was appended"),
          "copy it again, or tokenize the text again");
  impl->vocabulary = {static_cast<int64_t>(impl->header.vocab_size), impl->header.vocab_fingerprint};
  return TokenFile(std::move(impl));
}

const std::filesystem::path& TokenFile::path() const { return impl_->path; }
int64_t TokenFile::size() const { return static_cast<int64_t>(impl_->header.count); }
int TokenFile::width() const { return static_cast<int>(impl_->header.width); }
const Vocabulary& TokenFile::vocabulary() const { return impl_->vocabulary; }

void TokenFile::require_vocabulary(const Vocabulary& vocabulary) const {
  if (vocabulary == impl_->vocabulary) return;
  fail(ErrorKind::Config, impl_->path.string(),
       "it was made with another vocabulary (" + described(impl_->vocabulary) + ") than the one given (" +
           described(vocabulary) + ")",
       "tokenize the text with this vocabulary, or name the other one");
}

std::span<const uint16_t> TokenFile::tokens16() const {
  if (width() != 2) return {};
  return {reinterpret_cast<const uint16_t*>(impl_->payload()), impl_->header.count};
}

std::span<const uint32_t> TokenFile::tokens32() const {
  if (width() != 4) return {};
  return {reinterpret_cast<const uint32_t*>(impl_->payload()), impl_->header.count};
}

void TokenFile::read(int64_t first, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || count > size() || first > size() - count) {
    fail(ErrorKind::Usage, impl_->path.string(),
         std::to_string(count) + " tokens from " + std::to_string(first) + " on are not in a file of " +
             std::to_string(size()));
  }
  if (width() == 2) {
    copy_tokens(tokens16().subspan(first, count), out, first, *this);
  } else {
    copy_tokens(tokens32().subspan(first, count), out, first, *this);
  }
}

void TokenFile::verify() const {
  const uint64_t checksum = XXH3_64bits(impl_->payload(), impl_->payload_bytes());
  require(checksum == impl_->header.payload_checksum, ErrorKind::Corrupt, impl_->path.string(),
          "its tokens have checksum " + hexadecimal(checksum) + ", expected " +
              hexadecimal(impl_->header.payload_checksum),
          "copy it again, or tokenize the text again");
  int32_t piece[4096];
  for (int64_t first = 0; first < size(); first += std::ssize(piece)) {
    read(first, std::span(piece).first(std::min<int64_t>(std::ssize(piece), size() - first)));
  }
}

}  // namespace zero

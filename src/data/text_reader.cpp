#include "data/text_reader.h"

#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "base/strict_json.h"
#include "zero/error.h"

namespace zero::data {
namespace {

constexpr size_t kChunk = 1 << 20;
constexpr uint64_t kMostJsonBytes = uint64_t{1} << 29;

[[noreturn]] void too_long(const std::filesystem::path& path, uint64_t most) {
  fail(ErrorKind::Unsupported, path.string(), "it holds more than " + std::to_string(most) + " bytes",
       "split it into smaller files");
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

struct Inflate {
  z_stream stream{};
  ~Inflate() { inflateEnd(&stream); }
};

std::string gunzip(std::string_view packed, const std::filesystem::path& path, uint64_t most) {
  Inflate gzip;
  z_stream& z = gzip.stream;
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  require(inflateInit2(&z, kGzipOnly) == Z_OK, ErrorKind::Internal, path.string(), "zlib has no memory");
  std::string text;
  size_t given = 0;
  for (;;) {
    if (z.avail_in == 0 && given < packed.size()) {
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + given));
      z.avail_in = static_cast<uInt>(std::min(packed.size() - given, kChunk));
      given += z.avail_in;
    }
    const size_t before = text.size();
    text.resize(before + kChunk);
    z.next_out = reinterpret_cast<Bytef*>(text.data() + before);
    z.avail_out = kChunk;
    const int rc = inflate(&z, Z_NO_FLUSH);
    text.resize(before + kChunk - z.avail_out);
    if (text.size() > most) too_long(path, most);
    const bool more_input = z.avail_in > 0 || given < packed.size();
    if (rc == Z_STREAM_END) {
      if (!more_input) return text;
      inflateReset(&z);  // another member follows
      continue;
    }
    if (rc == Z_OK && (more_input || z.avail_out == 0)) continue;
    fail(ErrorKind::Corrupt, path.string(),
         rc == Z_OK || rc == Z_BUF_ERROR
             ? "the gzip data ends too early"
             : std::string("broken gzip data: ") + (z.msg ? z.msg : "no reason given"),
         "fetch the file again");
  }
}

}  // namespace

std::string read_file(const std::filesystem::path& path, uint64_t most) {
  std::error_code error;
  require(!std::filesystem::is_directory(path, error), ErrorKind::Io, path.string(),
          "it is a directory, not a file");
  std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  require(file != nullptr, ErrorKind::Io, path.string(), std::string("cannot open: ") + std::strerror(errno));
  const auto size = std::filesystem::file_size(path, error);
  std::string bytes;
  if (!error && size <= most) bytes.reserve(size + 1);
  for (;;) {
    const size_t before = bytes.size();
    const size_t room = std::max(bytes.capacity() - before, size_t{1 << 16});
    bytes.resize(before + room);
    const size_t got = std::fread(bytes.data() + before, 1, room, file.get());
    bytes.resize(before + got);
    if (bytes.size() > most) too_long(path, most);
    if (got < room) break;
  }
  require(std::ferror(file.get()) == 0, ErrorKind::Io, path.string(),
          std::string("cannot read: ") + std::strerror(errno));
  return bytes;
}

std::string read_text(const std::filesystem::path& path, uint64_t most) {
  std::string bytes = read_file(path, most);
  if (!bytes.starts_with("\x1f\x8b")) return bytes;
  return gunzip(bytes, path, most);
}

nlohmann::json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path, kMostJsonBytes), path.string());
}

}  // namespace zero::data

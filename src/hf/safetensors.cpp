#include "hf/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "checkpoint/file_io.h"
#include "checkpoint/json.h"
#include "zero/error.h"

namespace zero::hf {
namespace {

using checkpoint::fail_errno;
using checkpoint::in_quotes;
using checkpoint::Json;

constexpr int64_t kMostHeaderBytes = 100'000'000;
constexpr int64_t kWindowBytes = 4 << 20;
constexpr size_t kMostDimensions = 64;
constexpr std::string_view kMetadataKey = "__metadata__";

std::optional<int64_t> product(std::span<const int64_t> shape) {
  std::optional<int64_t> numel = 1;
  for (const int64_t size : shape)
    if (numel) numel = checked_multiply(*numel, size);
  return numel;
}

StoredTensor tensor_of(const Json& json, int64_t data_begin, int64_t file_bytes, const std::string& place) {
  require(json.is_object(), ErrorKind::Corrupt, place, "expected an object");
  const std::string dtype = checkpoint::text_member(json, "dtype", place);
  const auto known = dtype_from_safetensors(dtype);
  require(known.has_value(), ErrorKind::Corrupt, place, "unknown dtype " + in_quotes(dtype));
  const Json& shape = checkpoint::member(json, "shape", Json::value_t::array, place);
  const Json& offsets = checkpoint::member(json, "data_offsets", Json::value_t::array, place);
  require(shape.size() <= kMostDimensions && offsets.size() == 2, ErrorKind::Corrupt, place,
          "expected at most 64 dimensions and two offsets");
  StoredTensor tensor;
  tensor.dtype = *known;
  for (const Json& size : shape) tensor.shape.push_back(checkpoint::count_value(size, "shape", place));
  const int64_t begin = checkpoint::count_value(offsets[0], "data_offsets", place);
  const int64_t end = checkpoint::count_value(offsets[1], "data_offsets", place);
  const auto numel = product(tensor.shape);
  const auto bytes = numel ? checked_multiply(*numel, itemsize(*known)) : std::nullopt;
  require(begin <= end && end <= file_bytes - data_begin && bytes == end - begin, ErrorKind::Corrupt, place,
          "shape " + shape_text(tensor.shape) + " of " + dtype + " does not fit bytes " +
              std::to_string(begin) + " to " + std::to_string(end) + " of " +
              std::to_string(file_bytes - data_begin));
  tensor.numel = *numel;
  tensor.begin_byte = data_begin + begin;
  return tensor;
}

void check_cover(const std::map<std::string, StoredTensor>& tensors, int64_t next, int64_t file_bytes,
                 const std::string& place) {
  std::vector<std::pair<const std::string*, const StoredTensor*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&name, &tensor);
  // An empty tensor stands before the one that begins at the same byte.
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin_byte, a.second->numel) <
           std::pair(b.second->begin_byte, b.second->numel);
  });
  for (const auto& [name, tensor] : order) {
    require(tensor->begin_byte == next, ErrorKind::Corrupt, place,
            "tensor " + in_quotes(*name) + " begins at byte " + std::to_string(tensor->begin_byte) +
                ", expected " + std::to_string(next));
    next += tensor->numel * itemsize(tensor->dtype);
  }
  require(next == file_bytes, ErrorKind::Corrupt, place,
          "its tensors end at byte " + std::to_string(next) + ", the file at " + std::to_string(file_bytes));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  // Links are followed: the Hub's cache consists of them.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_errno(path, "open");
  try {
    const int64_t bytes = size_bytes();
    require(bytes >= 8, ErrorKind::Corrupt, path.string(), "too short for a safetensors file");
    uint64_t length = 0;
    int shift = 0;
    read(0, 8, [&](std::span<const std::byte> window) {
      for (const std::byte byte : window)
        length |= static_cast<uint64_t>(byte) << std::exchange(shift, shift + 8);
    });
    require(length <= static_cast<uint64_t>(std::min(kMostHeaderBytes, bytes - 8)), ErrorKind::Corrupt,
            path.string(), "its header claims " + std::to_string(length) + " bytes");
    std::string header;
    read(8, static_cast<int64_t>(length), [&](std::span<const std::byte> window) {
      header.append(reinterpret_cast<const char*>(window.data()), window.size());
    });
    parse(header, 8 + static_cast<int64_t>(length));
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      tensors_(std::move(other.tensors_)) {}

int64_t SafetensorsFile::size_bytes() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) fail_errno(path_, "look at");
  require(S_ISREG(status.st_mode), ErrorKind::Io, path_.string(), "it is not a regular file");
  return status.st_size;
}

void SafetensorsFile::parse(const std::string& header, int64_t data_begin) {
  const std::string place = path_.string() + ": header";
  const int64_t bytes = size_bytes();
  const Json json = checkpoint::parse_object(header, place);
  for (const auto& [name, value] : json.items())
    if (name != kMetadataKey)
      tensors_.emplace(name, tensor_of(value, data_begin, bytes, place + ": " + in_quotes(name)));
  check_cover(tensors_, data_begin, bytes, path_.string());
}

void SafetensorsFile::read(int64_t begin, int64_t count,
                           const std::function<void(std::span<const std::byte>)>& sink) const {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  require(begin >= 0 && count >= 0, ErrorKind::Internal, path_.string(), "a range before the file");
  // Asked anew each time: a mapping beyond the end of the file would end the process when it is read.
  const auto end = checked_add(begin, count);
  require(end && *end <= size_bytes(), ErrorKind::Corrupt, path_.string(), "the file has become shorter");
  for (int64_t at = begin; at < *end;) {
    const int64_t mapped = at / page * page;
    const int64_t stop = std::min(*end, mapped + kWindowBytes);
    const auto length = static_cast<size_t>(stop - mapped);
    void* window = ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE | MAP_POPULATE, descriptor_, mapped);
    if (window == MAP_FAILED) fail_errno(path_, "map");
    try {
      sink({static_cast<const std::byte*>(window) + (at - mapped), static_cast<size_t>(stop - at)});
    } catch (...) {
      ::munmap(window, length);
      throw;
    }
    ::munmap(window, length);
    at = stop;
  }
}

int64_t data_bytes(const NewTensor& tensor) {
  const bool positive =
      std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t n) { return n >= 0; });
  const auto numel = positive ? product(tensor.shape) : std::nullopt;
  const auto bytes = numel ? checked_multiply(*numel, itemsize(tensor.dtype)) : std::nullopt;
  require(bytes.has_value(), ErrorKind::Usage, tensor.name, "impossible shape " + shape_text(tensor.shape));
  return *bytes;
}

std::string safetensors_header(std::span<const NewTensor> tensors) {
  // Readers of Hugging Face look for the format.
  std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";
  int64_t begin = 0;
  for (const NewTensor& tensor : tensors) {
    const auto end = checked_add(begin, data_bytes(tensor));
    require(end.has_value(), ErrorKind::Usage, tensor.name, "a file beyond 2^63 bytes");
    json += "," + Json(tensor.name).dump() + ":" +
            Json{{"dtype", safetensors_name(tensor.dtype)},
                 {"shape", tensor.shape},
                 {"data_offsets", {begin, *end}}}
                .dump();
    begin = *end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  require(static_cast<int64_t>(json.size()) <= kMostHeaderBytes, ErrorKind::Unsupported, "safetensors",
          "more tensors than the header of one file holds", "choose smaller files");
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return length + json;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t size : shape) text.append(text.size() > 1 ? ", " : "").append(std::to_string(size));
  return text + "]";
}

}  // namespace zero::hf

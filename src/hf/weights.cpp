#include "hf/weights.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <set>

#include "base/checked.h"
#include "checkpoint/file_io.h"
#include "checkpoint/json.h"
#include "zero/error.h"

namespace zero::hf {
namespace {

namespace fs = std::filesystem;
using checkpoint::in_quotes;
using checkpoint::Json;

constexpr int64_t kMostIndexBytes = 100'000'000;
constexpr int64_t kWindowNumel = int64_t{1} << 18;  // at most a MiB that is read at a time
constexpr int64_t kMostSparse = 16;  // of so many elements one is wanted: those between are read along
constexpr std::string_view kSuffix = ".safetensors";

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float from_fp16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, exponent = bits >> 10 & 31, fraction = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -small : small;
}

template <class From, class Convert>
void convert(std::span<const std::byte> bytes, std::span<float> out, Convert one) {
  for (size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = one(value);
  }
}

// The first elements of `bytes`, as many as `out` holds.
void to_floats(Dtype dtype, std::span<const std::byte> bytes, std::span<float> out) {
  if (dtype == Dtype::f32) std::memcpy(out.data(), bytes.data(), out.size_bytes());
  if (dtype == Dtype::bf16) convert<uint16_t>(bytes, out, from_bf16);
  if (dtype == Dtype::f16) convert<uint16_t>(bytes, out, from_fp16);
}

// A file beside the index: the index comes from outside and must not lead anywhere else.
void require_plain_name(const std::string& name, const std::string& place) {
  const bool plain = !name.empty() && name.find('/') == std::string::npos &&
                     name.find('\0') == std::string::npos && name.ends_with(kSuffix);
  require(plain, ErrorKind::Corrupt, place,
          "expected the name of a safetensors file beside it, got " + in_quotes(name));
}

}  // namespace

Weights::Weights(const fs::path& directory, const std::string& name) : directory_(directory) {
  std::error_code ignored;
  const fs::path single = directory / (name + std::string(kSuffix)), index = single.string() + ".index.json";
  if (fs::exists(index, ignored)) {
    open_index(index);
    return;
  }
  require(fs::exists(single, ignored), ErrorKind::Config, directory.string(),
          "it holds neither " + single.filename().string() + " nor " + index.filename().string(),
          "only safetensors files are read; save the model with safe_serialization=True");
  files_.emplace_back(single);
  for (const auto& [tensor, stored] : files_.front().tensors()) file_of_.emplace(tensor, 0);
}

void Weights::open_index(const fs::path& index) {
  const std::string place = index.string();
  const Json json = parse_json(checkpoint::read_text(fs::canonical(index), kMostIndexBytes), place);
  std::map<std::string, std::set<std::string>> tensors_of;  // by file
  for (const auto& [tensor, file] : JsonPlace(json, place)["weight_map"].members())
    tensors_of[file.string()].insert(tensor);
  for (const auto& [file, tensors] : tensors_of) {
    require_plain_name(file, place);
    files_.emplace_back(directory_ / file);
    for (const std::string& tensor : tensors) {
      require(files_.back().tensors().contains(tensor), ErrorKind::Corrupt, place,
              "tensor " + in_quotes(tensor) + " is not in " + file);
      file_of_.emplace(tensor, files_.size() - 1);
    }
    for (const auto& [tensor, stored] : files_.back().tensors())
      require(tensors.contains(tensor), ErrorKind::Corrupt, (directory_ / file).string(),
              "tensor " + in_quotes(tensor) + " is not in the index, or in another file there");
  }
}

std::vector<std::string> Weights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const FileTensor* Weights::find(const std::string& name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : &files_[found->second].tensors().at(name);
}

void Weights::read(const std::string& name, const BoxRange& range, std::span<float> out) const {
  const FileTensor* tensor = find(name);
  const std::string place = directory_.string() + ": " + name;
  require(tensor, ErrorKind::Usage, place, "there is no such tensor");
  const Dtype dtype = tensor->dtype;
  require(dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16, ErrorKind::Unsupported, place,
          "stored as " + std::string(to_string(dtype)), "weights are read from fp32, bf16 and fp16");
  require(range.is_inside(tensor->shape) && range.numel == std::ssize(out), ErrorKind::Usage, place,
          "a range outside the tensor");
  const SafetensorsFile& file = files_[file_of_.at(name)];
  const int64_t size = itemsize(dtype);
  std::vector<std::byte> window;
  int64_t begin = 0, end = 0;  // elements of the tensor in it
  CommonRuns runs(BoxRange::whole(tensor->shape), range);
  while (const auto run = runs.next()) {
    for (int64_t done = 0; done < run->numel;) {
      const int64_t from = run->from_a + done, left = run->numel - done;
      const auto target = out.subspan(run->from_b + done, left);
      if (from >= end && dtype == Dtype::f32 && left >= kWindowNumel) {
        file.read_at(tensor->begin_byte + from * size, std::as_writable_bytes(target));
        break;
      }
      if (from >= end) {
        const bool dense = (runs.end_a() - from) / kMostSparse <= left + runs.numel();
        begin = from;
        end = std::min(from + kWindowNumel, dense ? runs.end_a() : from + left);
        window.resize((end - begin) * size);
        file.read_at(tensor->begin_byte + begin * size, window);
      }
      const int64_t count = std::min(left, end - from);
      to_floats(dtype, std::span(window).subspan((from - begin) * size), target.first(count));
      done += count;
    }
  }
}

std::shared_ptr<const std::byte> Weights::map(const std::string& name) const {
  const FileTensor* tensor = find(name);
  require(tensor, ErrorKind::Usage, directory_.string() + ": " + name, "there is no such tensor");
  return files_[file_of_.at(name)].map(tensor->begin_byte, tensor->numel * itemsize(tensor->dtype));
}

std::vector<OutputFile> split_into_files(std::span<const NewTensor> tensors, int64_t most_bytes) {
  require(!tensors.empty() && most_bytes >= 1, ErrorKind::Usage, "safetensors",
          "expected some tensors and files of at least one byte");
  std::vector<OutputFile> files;
  int64_t used = 0;
  for (const NewTensor& tensor : tensors) {
    const int64_t bytes = data_bytes(tensor);
    if (files.empty() || bytes > most_bytes - used) {
      files.emplace_back();
      used = 0;
    }
    files.back().tensors.push_back(tensor);
    used += std::min(bytes, most_bytes - used);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].name = files.size() == 1 ? "model.safetensors" : name;
  }
  return files;
}

std::string index_text(std::span<const OutputFile> files) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (const OutputFile& file : files) {
    for (const NewTensor& tensor : file.tensors) {
      map[tensor.name] = file.name;
      total += data_bytes(tensor);
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

}  // namespace zero::hf

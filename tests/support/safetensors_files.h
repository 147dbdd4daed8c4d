#pragma once
// Writes safetensors files by hand, for tests that read them.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "hf/safetensors.h"

namespace zero::testing {

/// A tensor and the bytes of its data.
struct FileTensor {
  hf::NewTensor tensor;
  std::string bytes;
};

template <class T>
FileTensor file_tensor(const std::string& name, Dtype dtype, std::vector<int64_t> shape,
                       const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return {{name, dtype, std::move(shape)}, std::move(bytes)};
}

inline std::string safetensors_bytes(const std::vector<FileTensor>& tensors) {
  std::vector<hf::NewTensor> header;
  std::string data;
  for (const FileTensor& t : tensors) {
    header.push_back(t.tensor);
    data += t.bytes;
  }
  return hf::safetensors_header(header) + data;
}

/// A file with this JSON as its header, whatever it says.
inline std::string file_with_header(const std::string& json, const std::string& data = {}) {
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return length + json + data;
}

}  // namespace zero::testing

#pragma once
// Tensors by name, as bytes that a rank hands back.

#include <torch/types.h>

#include <cstring>
#include <map>
#include <string>

#include "support/ranks.h"

namespace zero::testing {

inline void hand_back_named(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().cpu();
  const uint64_t sizes[] = {name.size(), flat.nbytes()};
  hand_back(std::string_view(reinterpret_cast<const char*>(sizes), sizeof sizes));
  hand_back(name);
  hand_back(std::string_view(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()));
}

/// What all ranks handed back so, by name; the same name from several ranks has the same bytes, or the test
/// fails.
inline std::map<std::string, std::string> named_of(const std::vector<RankResult>& results) {
  std::map<std::string, std::string> all;
  for (const RankResult& result : results)
    for (size_t at = 0; at < result.bytes.size();) {
      uint64_t sizes[2];
      std::memcpy(sizes, result.bytes.data() + at, sizeof sizes);
      const std::string name = result.bytes.substr(at + sizeof sizes, sizes[0]);
      const std::string bytes = result.bytes.substr(at + sizeof sizes + sizes[0], sizes[1]);
      at += sizeof sizes + sizes[0] + sizes[1];
      const auto [held, is_new] = all.emplace(name, bytes);
      EXPECT_TRUE(is_new || held->second == bytes) << name << " differs between ranks";
    }
  return all;
}

/// The names at which two differ, "" where they are alike.
inline std::string differences(const std::map<std::string, std::string>& found,
                               const std::map<std::string, std::string>& expected) {
  std::string text;
  for (const auto& [name, bytes] : expected) {
    const auto here = found.find(name);
    if (here == found.end())
      text += name + " is missing; ";
    else if (here->second != bytes)
      text += name + " differs; ";
  }
  for (const auto& [name, bytes] : found)
    if (!expected.contains(name)) text += name + " is too much; ";
  return text;
}

}  // namespace zero::testing

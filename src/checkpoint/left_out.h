#pragma once
// Frozen parameters that a checkpoint leaves out: where they come from, and what it remembers of their
// values, so that they can be told from others.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/json.h"

namespace zero::checkpoint {

struct LeftOut {
  std::string from;                              // in words, of whoever saved
  std::map<std::string, uint64_t> fingerprints;  // of each, by its name
};

/// `engine`: of a checkpoint's metadata. Nothing where all parameters are stored. Throws Corrupt.
std::optional<LeftOut> left_out_of(const JsonPlace& engine);
/// The same from the whole text, of any writer's.
std::optional<LeftOut> left_out_of_metadata(std::string_view metadata, std::string_view place);

/// A number that follows from elements, `width` bytes each, of the type they are computed with, and their
/// places from `begin` on. Those of parts add up to that of the whole, modulo 2^64.
uint64_t fingerprint_of(const void* elements, int64_t numel, int64_t width, int64_t begin);

}  // namespace zero::checkpoint

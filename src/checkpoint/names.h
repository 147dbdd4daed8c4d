#pragma once
// What names in a checkpoint of a model begin with (docs/checkpoint_format.md).

#include <string_view>

namespace zero::checkpoint {

inline constexpr std::string_view kModelPrefix = "model/", kBufferPrefix = "buffer/";

}  // namespace zero::checkpoint

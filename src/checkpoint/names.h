#pragma once
// What names in a checkpoint of a model begin with (docs/checkpoint_format.md).

#include <string_view>

namespace zero::checkpoint {

inline constexpr std::string_view kModelPrefix = "model/", kBufferPrefix = "buffer/";
/// Then the kind of state, "exp_avg/".
inline constexpr std::string_view kOptimizerPrefix = "optimizer/";
/// Then the number of the rank whose own it is.
inline constexpr std::string_view kRankPrefix = "rank/";

}  // namespace zero::checkpoint

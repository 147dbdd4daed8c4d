#include "mesh/rank_places.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace zero::detail {
namespace {

int size_of(std::span<const Axis> axes) {
  int size = 1;
  for (const Axis& axis : axes) size *= axis.size;
  return size;
}

bool has_places(std::span<const Axis> axes) {
  return std::count_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size > 1; }) > 1;
}

}  // namespace

std::string rank_with_place(std::span<const Axis> axes, int rank) {
  std::string place;
  int stride = size_of(axes);
  for (const Axis& axis : axes) {
    stride /= axis.size;
    if (axis.size > 1)
      place += (place.empty() ? "" : ", ") + axis.name + " " + std::to_string(rank / stride % axis.size);
  }
  const std::string name = "rank " + std::to_string(rank);
  return has_places(axes) ? name + " (" + place + ")" : name;
}

std::string with_places(std::span<const Axis> axes, const std::string& text) {
  constexpr std::string_view kWord = "rank ";
  if (!has_places(axes)) return text;
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t found = text.find(kWord, at);
    const size_t digits = found == std::string::npos ? text.size() : found + kWord.size();
    int rank = -1;
    const char* const end = std::from_chars(text.data() + digits, text.data() + text.size(), rank).ptr;
    result.append(text, at, std::min(found, text.size()) - at);
    if (found == std::string::npos) break;
    const auto past = static_cast<size_t>(end - text.data());
    result +=
        rank >= 0 && rank < size_of(axes) ? rank_with_place(axes, rank) : text.substr(found, past - found);
    at = past;
  }
  return result;
}

}  // namespace zero::detail

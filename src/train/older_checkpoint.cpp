#include "train/older_checkpoint.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error_text.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::training {

namespace fs = std::filesystem;

fs::path older_checkpoint(const fs::path& checkpoint) {
  const fs::path place = checkpoint.has_filename() ? checkpoint : checkpoint.parent_path();
  const fs::path folder = place.has_parent_path() ? place.parent_path() : ".";
  // Names of equal length, in the order of their steps.
  std::vector<fs::path> older;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename(), own = place.filename();
    if (name.starts_with("step-") && name.size() == own.size() && name < own) older.push_back(entry.path());
  }
  std::sort(older.begin(), older.end(), std::greater<>());
  for (const fs::path& candidate : older) {
    try {
      const CheckpointReader opens(candidate);
      return place.has_parent_path() ? candidate : candidate.filename();
    } catch (const Error&) {
      continue;  // it is no better
    }
  }
  return {};
}

void naming_older(const fs::path& checkpoint, const std::function<void()>& reading) {
  try {
    reading();
  } catch (const Error& error) {
    const bool is_damage = error.kind() == ErrorKind::Corrupt || error.kind() == ErrorKind::Io;
    const fs::path older = is_damage ? older_checkpoint(checkpoint) : fs::path();
    if (older.empty()) throw;
    constexpr std::string_view remedy = "; use another checkpoint";
    std::string text = text_without_kind(error);
    if (text.ends_with(remedy)) text.resize(text.size() - remedy.size());
    throw Error(error.kind(), "", text, "the checkpoint before it is " + older.string());
  }
}

}  // namespace zero::training

#include "checkpoint/directory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <random>
#include <vector>

#include "checkpoint/file_io.h"
#include "checkpoint/index.h"
#include "zero/checkpoint.h"

namespace zero {
namespace checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemporary = ".tmp-";

template <typename Number>
std::optional<Number> parse_number(std::string_view text, int base) {
  Number value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Found {
  fs::path path;
  DirectoryName name;
};

std::vector<Found> list(const fs::path& directory, std::error_code& error) {
  std::vector<Found> found;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    auto name = parse_name(entry->path().filename().string());
    std::error_code ignored;
    if (name && fs::is_directory(entry->symlink_status(ignored))) found.push_back({entry->path(), *name});
  }
  return found;
}

// Renames first, so that a removal that is interrupted leaves no half checkpoint under a good name.
void remove_checkpoint(const Found& found) {
  fs::path doomed = found.path.parent_path() / temporary_name(found.name.step, random_id());
  std::error_code error;
  fs::rename(found.path, doomed, error);
  if (!error) fs::remove_all(doomed, error);
}

}  // namespace

std::string step_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*s%08lld", static_cast<int>(kStep.size()), kStep.data(),
                static_cast<long long>(step));
  return text;
}

std::string temporary_name(int64_t step, uint64_t save_id) {
  return step_name(step).append(kTemporary).append(to_hex(save_id));
}

std::optional<DirectoryName> parse_name(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  size_t end = name.find(kTemporary);
  auto step = parse_number<int64_t>(name.substr(kStep.size(), end - kStep.size()), 10);
  if (!step || *step < 0) return std::nullopt;
  DirectoryName parsed{.step = *step, .save_id = std::nullopt};
  if (end != name.npos) {
    parsed.save_id = parse_number<uint64_t>(name.substr(end + kTemporary.size()), 16);
    if (!parsed.save_id) return std::nullopt;
  }
  std::string canonical = parsed.save_id ? temporary_name(*step, *parsed.save_id) : step_name(*step);
  return canonical == name ? std::optional(parsed) : std::nullopt;
}

uint64_t random_id() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

void replace_directory(const fs::path& temporary, const fs::path& target) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST) {
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  }
  if (errno != EINVAL && errno != ENOSYS) fail_errno(temporary, "rename to " + target.string());
  // File systems without these flags: between the two renames there is no checkpoint of this step.
  auto name = parse_name(target.filename().string());
  fs::path old = target.parent_path() / temporary_name(name ? name->step : 0, random_id());
  bool replaces = ::rename(target.c_str(), old.c_str()) == 0;
  if (!replaces && errno != ENOENT) fail_errno(target, "rename to " + old.string());
  if (::rename(temporary.c_str(), target.c_str()) == 0) return;
  int error = errno;
  if (replaces) ::rename(old.c_str(), target.c_str());
  errno = error;
  fail_errno(temporary, "rename to " + target.string());
}

void clean(const fs::path& directory, const fs::path& current, int keep_last) noexcept try {
  std::error_code error;
  std::vector<Found> checkpoints;
  for (Found& found : list(directory, error)) {
    if (found.name.save_id)
      fs::remove_all(found.path, error);
    else if (fs::exists(found.path / kIndexName, error))
      checkpoints.push_back(std::move(found));
  }
  if (keep_last <= 0) return;
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const Found& a, const Found& b) { return a.name.step > b.name.step; });
  for (int64_t i = keep_last; i < std::ssize(checkpoints); ++i)
    if (checkpoints[i].path.filename() != current.filename()) remove_checkpoint(checkpoints[i]);
} catch (...) {
  // Nothing that is published depends on it.
}

}  // namespace checkpoint

std::filesystem::path latest_checkpoint(const std::filesystem::path& directory) {
  using namespace checkpoint;
  std::error_code error;
  std::filesystem::path latest;
  int64_t newest = -1;
  for (const auto& found : list(directory, error)) {
    std::error_code ignored;
    bool complete = !found.name.save_id && std::filesystem::exists(found.path / kIndexName, ignored);
    if (!complete || found.name.step <= newest) continue;
    newest = found.name.step;
    latest = found.path;
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    errno = error.value();
    fail_errno(directory, "list");
  }
  return latest;
}

}  // namespace zero

#pragma once
// Names in a checkpoint directory: "step-NNNNNNNN" is a checkpoint, "step-NNNNNNNN.tmp-SAVEID" one being made
// or removed.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace zero::checkpoint {

std::string step_name(int64_t step);
std::string temporary_name(int64_t step, uint64_t save_id);

struct DirectoryName {
  int64_t step = 0;
  std::optional<uint64_t> save_id;  // of a temporary
};
/// Nothing for names of other things.
std::optional<DirectoryName> parse_name(std::string_view name);

uint64_t random_id();

/// Puts `temporary` in the place of `target`. What was there before has the name `temporary` afterwards, or
/// is gone.
void replace_directory(const std::filesystem::path& temporary, const std::filesystem::path& target);

/// Removes all checkpoints but `current` and the newest `keep_last` (0 = all), and all temporaries. Failures
/// are left for the next time.
void clean(const std::filesystem::path& directory, const std::filesystem::path& current,
           int keep_last) noexcept;

}  // namespace zero::checkpoint

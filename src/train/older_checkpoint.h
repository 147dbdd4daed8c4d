#pragma once
// What a run can go on with where its newest checkpoint is damaged.

#include <filesystem>
#include <functional>

namespace zero::training {

/// The newest checkpoint beside this one that has fewer steps and can be opened; empty: there is none.
std::filesystem::path older_checkpoint(const std::filesystem::path& checkpoint);

/// Runs `reading`. An error (Corrupt, Io) of a checkpoint that cannot be read names the older one, where
/// there is one.
void naming_older(const std::filesystem::path& checkpoint, const std::function<void()>& reading);

}  // namespace zero::training

#pragma once
// A save under way: this rank's values, and the thread that writes them. Threads touch files only; what ranks
// have to agree on, their main threads do (engine_save.cpp).

#include <atomic>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "saving/snapshot.h"

namespace zero::detail {

class SaveJob {
 public:
  /// What all ranks know of the save.
  struct Target {
    std::filesystem::path directory, temporary;
    int64_t step = 0;
    std::string metadata;
    int keep_last = 0;
  };

  SaveJob(Target target, int rank) : target_(std::move(target)), rank_(rank) {}
  /// Waits for the thread. A save that was not published is abandoned.
  ~SaveJob();
  SaveJob(const SaveJob&) = delete;
  SaveJob& operator=(const SaveJob&) = delete;

  enum class Phase { Writing, Publishing };
  Phase phase() const { return phase_; }
  const Target& target() const { return target_; }

  /// Writes this rank's file, in a thread where `in_background`. The values' memory is let go at the end.
  void write(Snapshot snapshot, bool in_background);
  /// On rank 0, once every rank has written: merges the manifests and publishes; elsewhere nothing.
  void publish(std::vector<std::string> manifests, bool in_background);
  /// True while the thread of this rank works.
  bool is_working() const { return working_; }
  /// Waits for the thread; throws what kept the phase from succeeding.
  void finish_phase();
  /// After write(): what this rank wrote, for rank 0.
  const std::string& manifest() const { return manifest_; }
  /// The save is complete on all ranks: nothing is left to abandon.
  void set_published() { published_ = true; }

 private:
  template <class Work>
  void run(Work work, bool in_background);

  // Set before a thread starts, or by the thread and read after it has ended.
  Target target_;
  int rank_;
  Phase phase_ = Phase::Writing;
  bool published_ = false;
  std::string manifest_;
  std::exception_ptr error_;
  std::atomic<bool> working_ = false;
  std::thread thread_;
};

}  // namespace zero::detail

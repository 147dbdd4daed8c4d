#include "saving/save_job.h"

#include <system_error>
#include <utility>

#include "zero/error.h"

namespace zero::detail {

SaveJob::~SaveJob() {
  if (thread_.joinable()) thread_.join();
  if (rank_ == 0 && !published_) CheckpointWriter::abandon(target_.temporary);
}

template <class Work>
void SaveJob::run(Work work, bool in_background) {
  working_ = true;
  auto guarded = [this, work = std::move(work)]() mutable {
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
    working_ = false;
  };
  if (!in_background) return guarded();
  try {
    thread_ = std::thread(std::move(guarded));
  } catch (const std::system_error& error) {
    working_ = false;
    error_ = std::make_exception_ptr(Error(ErrorKind::Io, target_.temporary.string(),
                                           std::string("cannot start a thread: ") + error.what(),
                                           "allow more processes, or save without checkpoint.async"));
  }
}

void SaveJob::write(Snapshot snapshot, bool in_background) {
  run(
      [this, snapshot = std::move(snapshot)]() mutable {
        manifest_ = to_text(CheckpointWriter::write_shard(target_.temporary, rank_, snapshot.pieces));
        snapshot = {};
      },
      in_background);
}

void SaveJob::publish(std::vector<std::string> manifests, bool in_background) {
  phase_ = Phase::Publishing;
  if (rank_ != 0) return;
  run(
      [this, manifests = std::move(manifests)] {
        std::vector<ShardManifest> every;
        every.reserve(manifests.size());
        for (const std::string& text : manifests) every.push_back(manifest_from_text(text));
        CheckpointWriter::publish(target_.temporary, target_.directory, target_.step, every, target_.metadata,
                                  target_.keep_last);
        published_ = true;
      },
      in_background);
}

void SaveJob::finish_phase() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace zero::detail

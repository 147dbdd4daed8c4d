#pragma once
// The small thread of each rank that tells the others through the store that it lives and what it is doing,
// and that finds out, when an operation fails, which rank is to blame. It has a connection to the store of
// its own.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/diagnosis.h"
#include "mesh/neighbours.h"
#include "mesh/transport.h"

namespace zero::detail {

struct MonitorOptions {
  std::function<c10::intrusive_ptr<c10d::Store>()> connect;  // called in the monitor's thread
  int rank = 0;
  bool keeps_store = false;             // the store lives in this process
  std::chrono::milliseconds timeout{};  // of a collective; heartbeats come every min(0.5 s, timeout / 8)
  std::shared_ptr<const Neighbours> neighbours = std::make_shared<Neighbours>();
};

/// What became of a failed operation, and what to do about it.
struct Diagnosis {
  std::string text, remedy;
};

class Monitor {
 public:
  explicit Monitor(const MonitorOptions& options);
  /// Stops the thread without telling anybody. Leaves it behind if the store does not let go of it within a
  /// second.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Makes a log for a group; the number it has from then on.
  int add_group(const std::string& name);
  void issued(int group, const Issued& issued);

  /// Why no further operation can succeed: a failure of this rank or another. Nothing while all is well.
  std::optional<std::string> broken() const;

  /// Lets `transfer` be aborted when another rank reports a failure, and tells the others what this rank
  /// waits for. False if one already has. Both outlive the wait.
  bool begin_wait(Transfer* transfer, int group, const Issued* issued);
  void end_wait();

  /// Posts this rank's failure, watches the others for a short while and explains. Bounded by less than three
  /// seconds, also where the store hangs.
  Diagnosis diagnose(const Incident& incident);

  /// Posts a reason to give up, unless this rank has posted one. Never throws; bounded by two seconds.
  void report(const std::string& reason) noexcept;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace zero::detail

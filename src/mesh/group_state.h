#pragma once
// What a Group and its Works share.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mesh/monitor.h"
#include "mesh/transport.h"
#include "zero/mesh.h"

namespace zero::detail {

/// What all groups of a mesh add to.
struct Activity {
  std::shared_ptr<Trace> trace;  // may be null
  double waited_s = 0;
};

struct GroupState {
  // Constant after construction.
  std::string name;
  int rank = 0;               // this rank's place in members
  std::vector<int> members;   // mesh ranks
  std::vector<int> memories;  // of the members: those with the same number share memory
  torch::Device device = torch::kCPU;
  std::chrono::milliseconds timeout{};
  std::shared_ptr<Transport> transport;                        // outlives the channel
  std::shared_ptr<const std::vector<std::string>> host_names;  // of all mesh ranks; null on one host
  std::shared_ptr<Monitor> monitor;                            // null where there are no other ranks to watch
  std::unique_ptr<Channel> channel;                            // null in a group of one
  int monitor_slot = 0;
  std::shared_ptr<Activity> activity;

  // Changed by the one thread that issues and waits.
  uint64_t sequence = 0;
  Issued completed;  // the last operation that needed every member
  std::map<Operation, Traffic> traffic;
  std::map<uint64_t, std::vector<std::unique_ptr<Transfer>>>
      abandoned;  // dropped unfinished, by sequence number

  int size() const { return static_cast<int>(members.size()); }
  int mesh_rank() const { return members[rank]; }
  /// "all_gather h.3 (#12) in group dp, rank 1"
  std::string place(const Issued& issued) const;

  /// Notes that an operation is issued: its number, the log, the traffic. Throws Comm if the mesh has failed.
  Issued issue(Operation operation, std::string_view what, int64_t numel, Traffic traffic);
  /// Begins a transfer; its errors become this operation's.
  std::unique_ptr<Transfer> begin(const Issued& issued,
                                  const std::function<std::unique_ptr<Transfer>(Channel&)>& start);
  /// Waits for a transfer, or only for its outputs. Throws Comm.
  void complete(const Issued& issued, Transfer& transfer, bool output_only = false);
  /// Runs something of the transport's; its errors become this operation's.
  void attempt(const Issued& issued, const std::function<void()>& body);
  /// Keeps a transfer whose Work was dropped until the ranks have moved on.
  void abandon(const Issued& issued, std::unique_ptr<Transfer> transfer);

 private:
  void wait_for(const Issued& issued, Transfer& transfer, bool output_only);
  [[noreturn]] void fail_with(const Issued& issued, const TransferError& error);
  void finish_abandoned(uint64_t before);
};

/// The door to a group's state for src/mesh.
struct GroupAccess {
  static const std::shared_ptr<GroupState>& state_of(const Group& group) { return group.state_; }
};

class WorkState {
 public:
  WorkState(std::shared_ptr<GroupState> group, Issued issued, std::unique_ptr<Transfer> transfer,
            std::function<void()> finish)
      : group_(std::move(group)),
        issued_(std::move(issued)),
        transfer_(std::move(transfer)),
        finish_(std::move(finish)) {}
  ~WorkState();
  void wait();
  void wait_output();

 private:
  void run(const std::function<void()>& body);
  void take_down();

  std::shared_ptr<GroupState> group_;
  Issued issued_;
  Trace::Clock::time_point begun_ = Trace::Clock::now();
  std::unique_ptr<Transfer> transfer_;
  std::function<void()> finish_;  // what is left to do once the bytes are there; may be empty
  bool output_ready_ = false;
  std::exception_ptr error_;
};

/// 31 bits that agree where two ranks do the same thing; `phase` tells apart the transfers of one operation.
int transfer_tag(const Issued& issued, at::ScalarType dtype, int phase);

}  // namespace zero::detail

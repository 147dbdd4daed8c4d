#pragma once
// From what the ranks told the store to one sentence that names the rank at fault. Pure functions.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "mesh/beat.h"
#include "mesh/neighbours.h"

namespace zero::detail {

/// A failed operation as the rank saw it that reports it.
struct Incident {
  std::string group;
  std::vector<int> members;  // mesh ranks of the group
  int rank = 0;              // this rank, in the mesh
  Issued issued;
  std::vector<int> peers;  // mesh ranks it was waiting for, where the transport knows
  bool timed_out = false;
  bool aborted = false;  // stopped because another rank had reported a failure
  Issued completed;      // the last operation that all members have certainly taken part in
  std::chrono::milliseconds timeout{};
  std::string text;                     // the transport's words
  std::vector<std::string> hosts = {};  // names, of all mesh ranks; empty where they are on one
};

/// Another rank's heartbeat over the time it was watched.
struct Sighting {
  bool seen = false;   // there was a heartbeat at all
  bool alive = false;  // a new one came while watching
  Beat beat;           // the latest
  ProcessState process = ProcessState::Unknown;
};

struct Observation {
  bool store_answers = true;
  bool store_broke = false;  // its connection failed, where it might have been silent
  ProcessState store_process = ProcessState::Unknown;  // of rank 0, which keeps it
  std::map<int, Sighting> ranks;                       // of every other member
  std::vector<FailureRecord> failures;                 // in the order they were posted
};

/// What this rank can say at once: "timed out after 2000 ms waiting for rank 2".
std::string headline(const Incident& incident);

/// The headline and everything the observation adds: who is gone (its process has ended, or its connection
/// broke), who does not answer (it may be stopped, or too slow), who is behind and what it waits for in
/// another group, who issued something else, and the failure that was posted first.
std::string explain(const Incident& incident, const Observation& observation);

/// What to do about it.
std::string remedy(const Incident& incident, const Observation& observation);

/// "rank 2", "ranks 1 and 3", "ranks 0, 1, 2 and 3 more"
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace zero::detail

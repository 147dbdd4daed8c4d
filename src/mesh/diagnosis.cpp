#include "mesh/diagnosis.h"

#include <algorithm>

namespace zero::detail {
namespace {

bool broke_off(const Incident& incident, int rank) {
  return !incident.timed_out && !incident.aborted &&
         std::find(incident.peers.begin(), incident.peers.end(), rank) != incident.peers.end();
}

// "is gone" or "does not answer", whichever is known; "" for a rank that runs.
std::string absence(const Incident& incident, int rank, const Sighting& sighting) {
  if (sighting.process == ProcessState::Ended) return "is gone";
  if (sighting.process == ProcessState::Stopped) return "does not answer, its process is stopped";
  if (sighting.alive) return "";
  return broke_off(incident, rank) ? "is gone" : "does not answer";
}

// What a rank issued in the place of this one's operation; null if the same, or not known.
const Issued* other_operation(const Incident& incident, const Sighting& sighting) {
  const GroupLog* log = sighting.beat.group(incident.group);
  const Issued* same = log && incident.issued.sequence > 0 ? log->at(incident.issued.sequence) : nullptr;
  return same && *same != incident.issued ? same : nullptr;
}

bool waits_elsewhere(const Incident& incident, const Sighting& sighting) {
  return !sighting.beat.waits_in.empty() && sighting.beat.waits_in != incident.group;
}

std::string divergence(const Issued& theirs, const Issued& ours) {
  return "issued " + describe(theirs) + " of " + std::to_string(theirs.numel) +
         " elements where this rank issued " + describe(ours) + " of " + std::to_string(ours.numel) +
         ": the ranks do different things";
}

// What is known of one other rank; "" if there is nothing to hold against it.
std::string charge(const Incident& incident, int rank, const Sighting& sighting) {
  std::string who = "rank " + std::to_string(rank);
  if (rank < std::ssize(incident.hosts)) who += " (host " + incident.hosts[rank] + ")";
  const GroupLog* log = sighting.beat.group(incident.group);
  const Issued* last = log ? log->last() : nullptr;
  // A heartbeat may be a second old; what this rank has completed with all others may be newer.
  if (incident.completed.sequence > (last ? last->sequence : 0)) last = &incident.completed;
  const std::string place = last ? describe(*last) : "the start";
  const std::string missing = absence(incident, rank, sighting);
  const Issued* other = other_operation(incident, sighting);
  if (!missing.empty())
    return who + " " + missing +
           (sighting.seen || last ? " (last seen at " + place + ")" : " (it was never heard of)") +
           (other ? " and " + divergence(*other, incident.issued) : "");
  if (incident.issued.sequence == 0) return "";
  if (!last || last->sequence < incident.issued.sequence)
    return who + " has not arrived: it is at " + place +
           (waits_elsewhere(incident, sighting)
                ? " and waits in " + describe(sighting.beat.waits_for) + " of group " + sighting.beat.waits_in
                : "");
  return other ? who + " " + divergence(*other, incident.issued) : "";
}

// The failure that was posted before all others, unless it is this rank's own.
const FailureRecord* first_foreign(const Incident& incident, const Observation& observation) {
  if (observation.failures.empty() || observation.failures[0].rank == incident.rank) return nullptr;
  return &observation.failures[0];
}

std::string store_text(const Observation& observation) {
  const std::string silent = "; the store on rank 0 does not answer: rank 0 ";
  if (observation.store_process == ProcessState::Stopped)
    return silent + "does not answer, its process is stopped";
  const bool gone = observation.store_process == ProcessState::Ended ||
                    (observation.store_process == ProcessState::Unknown && observation.store_broke);
  return silent + (gone ? "is gone" : "does not answer");
}

}  // namespace

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  if (ranks.size() == 1) return "rank " + std::to_string(ranks[0]);
  std::string text = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kShown) return text + " and " + std::to_string(ranks.size() - kShown) + " more";
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string headline(const Incident& incident) {
  if (incident.aborted) return "stopped, another rank has failed";
  const std::string peers = incident.peers.empty() ? "" : list_ranks(incident.peers);
  if (incident.timed_out)
    return "timed out after " + std::to_string(incident.timeout.count()) + " ms" +
           (peers.empty() ? "" : " waiting for " + peers);
  if (!peers.empty()) return "the connection to " + peers + " failed";
  return incident.text;
}

std::string explain(const Incident& incident, const Observation& observation) {
  std::string text = headline(incident);
  if (!observation.store_answers) text += store_text(observation);
  constexpr int kShown = 4;
  int charges = 0;
  for (const auto& [rank, sighting] : observation.ranks) {
    // Without a store only the kernel says how a rank is.
    const bool known = sighting.process == ProcessState::Ended || sighting.process == ProcessState::Stopped;
    if (!observation.store_answers && (rank == 0 || !known)) continue;
    std::string accusation = charge(incident, rank, sighting);
    if (accusation.empty()) continue;
    if (++charges <= kShown) text += "; " + accusation;
  }
  if (charges > kShown) text += "; and " + std::to_string(charges - kShown) + " ranks more";
  if (const FailureRecord* first = first_foreign(incident, observation))
    text += "; rank " + std::to_string(first->rank) + " reported first: " + first->text;
  return text;
}

namespace {

constexpr const char* kForEqualBatches =
    " for the same number of batches (one that is out of data joins with any batch and "
    "Engine::backward_sum(loss, 0))";

}  // namespace

std::string remedy(const Incident& incident, const Observation& observation) {
  bool diverges = false, is_blocked = false, ended = false;
  for (const auto& [rank, sighting] : observation.ranks) {
    diverges = diverges || other_operation(incident, sighting) != nullptr;
    is_blocked = is_blocked || (sighting.alive && waits_elsewhere(incident, sighting));
    ended = ended || sighting.process == ProcessState::Ended;
  }
  if (diverges)
    return std::string("make all ranks run the same modules in the same order") + kForEqualBatches;
  if (is_blocked)
    return "see what it waits for there: if only for a slow rank, raise the timeout; else make all ranks "
           "talk "
           "along all axes in the same order";
  if (incident.timed_out) return "see what that rank is doing; if it is only slow, raise the timeout";
  if (!ended) return "see what that rank printed";
  return std::string("see what that rank printed; if it ran out of data: run all ranks") + kForEqualBatches;
}

}  // namespace zero::detail

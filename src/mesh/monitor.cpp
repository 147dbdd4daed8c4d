#include "mesh/monitor.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "mesh/sigpipe.h"

namespace zero::detail {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

std::string beat_key(int rank) { return "beat/" + std::to_string(rank); }
constexpr const char* kFailures = "failures";

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_string(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

// Held by the thread too, which may outlive the Monitor if the store hangs.
struct Monitor::Shared {
  // Constant after construction.
  MonitorOptions options;
  milliseconds period{};

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  bool stop = false;
  bool finished = false;     // the thread has ended
  bool store_lost = false;   // the store did not answer; it is not asked again
  bool store_hangs = false;  // the thread has waited for it longer than anybody should
  Beat beat;                 // what the next heartbeat says
  Transfer* waiting = nullptr;
  const Issued* waits_for = nullptr;  // where `waiting` is
  int waits_in = 0;
  std::optional<std::string> own_failure;  // posted or to be posted
  bool posted = false;
  std::vector<FailureRecord> failures;  // all that the store has
  std::optional<Incident> incident;     // to be explained
  std::optional<Diagnosis> explanation;

  // Used by the thread only.
  c10::intrusive_ptr<c10d::Store> store;
  std::map<int, uint64_t> first_counts;  // of the beats when the watch began
  Incident watched;
  Observation observation;
  Clock::time_point watch_end;
  bool watching = false;

  void run();
  void round();
  void post_beat();
  void note_what_it_waits_for();
  void post_failure();
  void read_failures();
  void watch();
  void finish_watch(bool store_answers);
  Observation look_without_store(const Incident& about, bool store_broke) const;
  bool foreign_failure() const {
    return std::any_of(failures.begin(), failures.end(),
                       [&](const auto& f) { return f.rank != options.rank; });
  }
};

void Monitor::Shared::run() {
  SigpipeBlock block;
  std::unique_lock lock(mutex);
  while (!stop) {
    if (!store_lost) {
      lock.unlock();
      bool lost = false;
      try {
        round();
      } catch (const std::exception&) {
        lost = true;
      }
      lock.lock();
      store_lost = lost;
    }
    if (store_lost) {
      posted = own_failure.has_value();  // nobody can be told any more
      if (incident && !explanation) {
        lock.unlock();
        finish_watch(false);
        lock.lock();
      }
    }
    changed.notify_all();
    auto pause = watching ? std::max(period / 4, milliseconds(10)) : period;
    changed.wait_for(lock, pause, [&] {
      return stop || (incident && !explanation && !watching) || (own_failure && !posted && !store_lost);
    });
  }
  finished = true;
  changed.notify_all();
}

void Monitor::Shared::round() {
  if (!store) store = options.connect();
  post_beat();
  post_failure();
  read_failures();
  watch();
}

void Monitor::Shared::post_beat() {
  std::string text;
  {
    std::lock_guard lock(mutex);
    ++beat.count;
    note_what_it_waits_for();
    text = to_text(beat);
  }
  store->set(beat_key(options.rank), to_bytes(text));
}

// What it has failed in, too: the others still want to know where it was.
void Monitor::Shared::note_what_it_waits_for() {
  beat.waits_in.clear();
  if (waiting) {
    beat.waits_in = beat.groups[waits_in].name;
    beat.waits_for = *waits_for;
  } else if (incident) {
    beat.waits_in = incident->group;
    beat.waits_for = incident->issued;
  }
}

void Monitor::Shared::post_failure() {
  std::string text;
  {
    std::lock_guard lock(mutex);
    if (!own_failure || posted) return;
    text = to_text(FailureRecord{options.rank, *own_failure});
  }
  store->append(kFailures, to_bytes(text));
  std::lock_guard lock(mutex);
  posted = true;
  changed.notify_all();
}

void Monitor::Shared::read_failures() {
  if (!store->check({kFailures})) return;
  auto records = failures_from_text(to_string(store->get(kFailures)));
  std::lock_guard lock(mutex);
  failures = std::move(records);
  if (foreign_failure() && waiting) waiting->abort();
}

// One look at the other members' heartbeats; ends the watch when all are known or its time is over.
void Monitor::Shared::watch() {
  {
    std::lock_guard lock(mutex);
    if (!incident || explanation) return;
    if (!watching) watched = *incident;
  }
  if (!watching) {
    watching = true;
    first_counts.clear();
    observation = {};
    watch_end = Clock::now() + std::max(period * 5 / 2, milliseconds(500));
  }
  bool all_known = true;
  for (int rank : watched.members) {
    if (rank == options.rank) continue;
    Sighting& sighting = observation.ranks[rank];
    if (store->check({beat_key(rank)})) {
      sighting.beat = beat_from_text(to_string(store->get(beat_key(rank))));
      if (!sighting.seen) first_counts[rank] = sighting.beat.count;
      sighting.seen = true;
      sighting.alive = sighting.beat.count != first_counts[rank];
    }
    sighting.process = options.neighbours->look(rank);
    all_known = all_known && (sighting.alive || sighting.process == ProcessState::Ended ||
                              sighting.process == ProcessState::Stopped);
  }
  if (all_known || Clock::now() >= watch_end) finish_watch(true);
}

void Monitor::Shared::finish_watch(bool store_answers) {
  std::lock_guard lock(mutex);
  if (!store_answers) observation = look_without_store(*incident, /*store_broke=*/true);
  observation.failures = failures;
  explanation = {explain(*incident, observation), remedy(*incident, observation)};
  watching = false;
  changed.notify_all();
}

// What the kernel knows of the ranks on this host.
Observation Monitor::Shared::look_without_store(const Incident& about, bool store_broke) const {
  Observation result;
  result.store_answers = false;
  result.store_broke = store_broke;
  result.store_process = options.neighbours->look(0);
  for (const int rank : about.members)
    if (rank != options.rank) result.ranks[rank].process = options.neighbours->look(rank);
  return result;
}

Monitor::Monitor(const MonitorOptions& options) : shared_(std::make_shared<Shared>()) {
  shared_->options = options;
  shared_->period = std::clamp(options.timeout / 8, milliseconds(20), milliseconds(500));
  thread_ = std::thread([shared = shared_] { shared->run(); });
}

Monitor::~Monitor() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->waiting = nullptr;
  shared_->changed.notify_all();
  const milliseconds patience(shared_->store_hangs ? 0 : 1000);
  bool finished = shared_->changed.wait_for(lock, patience, [&] { return shared_->finished; });
  lock.unlock();
  if (finished) {
    thread_.join();
  } else {
    thread_.detach();  // it holds its own share of the state
  }
}

int Monitor::add_group(const std::string& name) {
  std::lock_guard lock(shared_->mutex);
  shared_->beat.groups.push_back({name, {}});
  return static_cast<int>(shared_->beat.groups.size()) - 1;
}

void Monitor::issued(int group, const Issued& issued) {
  std::lock_guard lock(shared_->mutex);
  shared_->beat.groups[group].add(issued);
}

std::optional<std::string> Monitor::broken() const {
  std::lock_guard lock(shared_->mutex);
  if (shared_->own_failure) return shared_->own_failure;
  for (const auto& record : shared_->failures)
    return "rank " + std::to_string(record.rank) + " reported: " + record.text;
  return std::nullopt;
}

bool Monitor::begin_wait(Transfer* transfer, int group, const Issued* issued) {
  std::lock_guard lock(shared_->mutex);
  shared_->waiting = transfer;
  shared_->waits_in = group;
  shared_->waits_for = issued;
  return !shared_->foreign_failure();
}

void Monitor::end_wait() {
  std::lock_guard lock(shared_->mutex);
  shared_->waiting = nullptr;
}

Diagnosis Monitor::diagnose(const Incident& incident) {
  std::unique_lock lock(shared_->mutex);
  if (!shared_->own_failure) {
    shared_->own_failure = describe(incident.issued) + ": " + headline(incident);
    shared_->posted = incident.aborted;  // a consequence is no news
  }
  shared_->incident = incident;
  shared_->explanation.reset();
  shared_->changed.notify_all();
  auto patience = std::max(shared_->period * 5 / 2, milliseconds(500)) + std::chrono::seconds(1);
  // A process that is stopped answers nobody.
  if (shared_->options.neighbours->look(0) == ProcessState::Stopped) patience = milliseconds(0);
  shared_->changed.wait_for(lock, patience, [&] { return shared_->explanation.has_value(); });
  if (shared_->explanation) {
    Diagnosis explanation = *shared_->explanation;
    lock.unlock();
    // The store ends with this process: the others, who noticed about now, must still be able to ask it.
    if (shared_->options.keeps_store) std::this_thread::sleep_for(std::chrono::seconds(1));
    return explanation;
  }
  shared_->store_hangs = true;
  const Observation seen = shared_->look_without_store(incident, /*store_broke=*/false);
  return {explain(incident, seen), remedy(incident, seen)};
}

void Monitor::report(const std::string& reason) noexcept {
  try {
    std::unique_lock lock(shared_->mutex);
    if (shared_->own_failure) return;
    shared_->own_failure = one_line(reason);
    shared_->changed.notify_all();
    if (shared_->store_hangs) return;
    shared_->changed.wait_for(lock, std::chrono::seconds(2), [&] { return shared_->posted; });
  } catch (...) {  // the report is a courtesy
  }
}

}  // namespace zero::detail

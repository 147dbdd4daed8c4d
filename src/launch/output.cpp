#include "launch/output.h"

#include <algorithm>

namespace zero::detail {
namespace {

constexpr size_t kLastLines = 5;        // kept of every rank for the report of a failure
constexpr size_t kLongestLine = 65536;  // a longer one is cut
constexpr size_t kMostLines = 4096;     // waiting lines of one rank; then the window is not waited for

}  // namespace

void LineMerger::finish_line(Source& source, std::string text, Time now) {
  if (!text.empty()) {
    source.last.push_back(text);
    if (source.last.size() > kLastLines) source.last.pop_front();
  }
  source.lines.push_back({std::move(text), now});
}

void LineMerger::add(int rank, std::string_view bytes, Time now) {
  Source& source = sources_[rank];
  for (char c : bytes) {
    if (c == '\n') {
      if (!source.partial.empty() && source.partial.back() == '\r') source.partial.pop_back();
      finish_line(source, std::move(source.partial), now);
      source.partial.clear();
      continue;
    }
    // A carriage return that no line end follows: progress, to be written over.
    if (!source.partial.empty() && source.partial.back() == '\r') {
      if (rank == 0) ready_ += source.partial;
      source.partial.clear();
    }
    source.partial += c;
    if (source.partial.size() >= kLongestLine) {
      finish_line(source, std::move(source.partial), now);
      source.partial.clear();
    }
  }
  // Shown without waiting for what follows it.
  if (rank == 0 && source.partial.size() > 1 && source.partial.back() == '\r') {
    ready_ += source.partial;
    source.partial.clear();
  }
}

void LineMerger::close(int rank, Time now) {
  Source& source = sources_[rank];
  if (source.closed) return;
  source.closed = true;
  if (!source.partial.empty() && source.partial.back() == '\r') source.partial.pop_back();
  if (!source.partial.empty()) finish_line(source, std::move(source.partial), now);
  source.partial.clear();
}

bool LineMerger::all_equal() const {
  for (const auto& source : sources_)
    if (source.lines.empty() || source.lines.front().text != sources_[0].lines.front().text) return false;
  return true;
}

// False once a rank that has nothing waiting can bring nothing any more, and when nobody can.
bool LineMerger::may_merge() const {
  if (std::all_of(sources_.begin(), sources_.end(), [](const Source& s) { return s.closed; })) return false;
  return std::none_of(sources_.begin(), sources_.end(),
                      [](const Source& s) { return s.closed && s.lines.empty(); });
}

// The rank whose first waiting line is to be printed alone; -1 if none is yet. Of several the one that is
// furthest ahead: once its extra line is out, the next ones may be the same as those of the others.
int LineMerger::next_marked(Time now) const {
  int found = -1;
  bool wait = may_merge();
  for (size_t rank = 0; rank < sources_.size(); ++rank) {
    const auto& lines = sources_[rank].lines;
    if (lines.empty()) continue;
    if (wait && now - lines.front().arrived < window_ && lines.size() <= kMostLines) continue;
    if (found < 0 || lines.size() > sources_[found].lines.size()) found = static_cast<int>(rank);
  }
  return found;
}

std::string LineMerger::take(Time now) {
  std::string text = std::move(ready_);
  ready_.clear();
  while (true) {
    if (all_equal()) {
      printed_ = sources_[0].lines.front().text;
      text += printed_ + "\n";
      for (auto& source : sources_) source.lines.pop_front();
      continue;
    }
    int rank = next_marked(now);
    if (rank < 0) return text;
    printed_ = sources_[rank].lines.front().text;
    text += "[rank " + std::to_string(rank) + "] " + printed_ + "\n";
    sources_[rank].lines.pop_front();
  }
}

LineMerger::Time LineMerger::next() const {
  Time first = Time::max();
  for (const auto& source : sources_)
    if (!source.lines.empty()) first = std::min(first, source.lines.front().arrived + window_);
  return first;
}

}  // namespace zero::detail

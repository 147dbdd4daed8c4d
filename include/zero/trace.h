#pragma once
// What a rank does over time, in the Chrome trace format: Perfetto (ui.perfetto.dev) and chrome://tracing
// open it.
//
//   options.trace = std::make_shared<zero::Trace>();   // MeshOptions: collectives and waits
//   ...                                                // the engine adds compute and optimizer
//   std::ofstream("trace.json") << zero::trace_document({options.trace->events(mesh.rank())});

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero {

/// Thread safe. Spans and counters beyond `most_spans` of each are counted and not kept.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  /// A row of the picture. Spans of one row are nested or apart; collectives may overlap.
  enum class Row { Compute, Wait, Optimizer, Collective };

  explicit Trace(size_t most_spans = size_t{1} << 20) : most_spans_(most_spans) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// `elements` below 0: none to tell.
  void span(Row row, std::string name, Clock::time_point begin, Clock::time_point end, int64_t elements = -1);

  /// Values of one row of counters from now on, by series.
  void counter(std::string name, Clock::time_point at, std::vector<std::pair<std::string, double>> series);

  size_t size() const;
  size_t dropped() const;

  /// The events of this rank, JSON objects separated by commas. Times are this host's clock, in microseconds
  /// since 1970, so that ranks of one host are drawn on one line of time.
  std::string events(int rank) const;

 private:
  struct Span {
    Row row;
    std::string name;
    Clock::time_point begin, end;
    int64_t elements;
  };
  struct Counter {
    std::string name;
    Clock::time_point at;
    std::vector<std::pair<std::string, double>> series;
  };
  const size_t most_spans_;
  const Clock::time_point started_ = Clock::now();
  const std::chrono::system_clock::time_point started_at_ = std::chrono::system_clock::now();
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<Counter> counters_;
  size_t dropped_ = 0;
};

/// One JSON document from what events() gave on each rank.
std::string trace_document(std::span<const std::string> events_of_ranks);

/// A span from here to the end of the scope, or to done(). Does nothing without a trace.
class TraceScope {
 public:
  TraceScope(Trace* trace, Trace::Row row, std::string_view name) : trace_(trace), row_(row) {
    if (trace_ == nullptr) return;
    name_ = name;
    begin_ = Trace::Clock::now();
  }
  ~TraceScope() { done(); }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;
  void done() {
    if (trace_ != nullptr) trace_->span(row_, std::move(name_), begin_, Trace::Clock::now());
    trace_ = nullptr;
  }

 private:
  Trace* trace_;
  Trace::Row row_;
  std::string name_;
  Trace::Clock::time_point begin_;
};

}  // namespace zero

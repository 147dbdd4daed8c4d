#pragma once
// Several ranks' output as one: the same line from all is printed once, others are marked. Pure: the caller
// gives the time and takes the text.

#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace zero::detail {

/// Merges one stream (standard output, or standard error) of `ranks` ranks.
class LineMerger {
 public:
  using Time = std::chrono::steady_clock::time_point;

  LineMerger(int ranks, std::chrono::milliseconds window) : window_(window), sources_(ranks) {}

  /// Bytes that a rank has written.
  void add(int rank, std::string_view bytes, Time now);
  /// The rank will write no more; an unfinished line ends here.
  void close(int rank, Time now);
  /// Text to print by now, with line ends. At the end of all sources that is everything.
  std::string take(Time now);
  /// When take() may have more even if nothing is added; Time::max() if never.
  Time next() const;
  /// True where what was printed last is this rank's last line, alone or together with the others'.
  bool ends_with(int rank) const {
    return !sources_[rank].last.empty() && printed_ == sources_[rank].last.back();
  }
  /// A rank's last non-empty lines, oldest first.
  const std::deque<std::string>& last_lines(int rank) const { return sources_[rank].last; }

 private:
  struct Line {
    std::string text;
    Time arrived;
  };
  struct Source {
    std::string partial;     // after the last line end
    std::deque<Line> lines;  // complete, not printed
    std::deque<std::string> last;
    bool closed = false;
  };

  void finish_line(Source& source, std::string text, Time now);
  bool all_equal() const;
  bool may_merge() const;
  int next_marked(Time now) const;

  std::chrono::milliseconds window_;
  std::vector<Source> sources_;
  std::string printed_;  // the last line
  std::string ready_;    // progress that passes through
};

}  // namespace zero::detail

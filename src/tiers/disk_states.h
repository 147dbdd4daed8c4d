#pragma once
// Flat states on a disk, by (state, piece): a ring of buffers through which a sweep over many pieces reads
// the next ones and writes the last ones while one is worked on, as ZeRO-Infinity does (arXiv 2104.07857,
// section 5).

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tiers/disk_file.h"

namespace zero::tiers {

struct DiskStatesOptions {
  int64_t piece_numel = int64_t{2} << 20;  // elements of a state that are moved at a time
  int buffers = 4;                         // of the ring, at least 2
  bool read_ahead = true;                  // pieces of a sweep are read before they are asked for
  bool write_behind = true;                // and written while the next ones are worked on
  // Memory of whole states, at multiples of kAlignment, such as a device copies from beside its work; null:
  // the system's.
  std::function<std::shared_ptr<std::byte>(int64_t bytes)> whole_memory = {};
};

/// Not thread safe. Bytes only: elements have as many as their state says.
class DiskStates {
 public:
  using State = int;
  /// The same piece of several states: their elements from index * piece_numel on.
  struct Piece {
    std::vector<State> states;
    int64_t index = 0;
    size_t read_only = 0;  // the last ones, that are never written
    bool operator==(const Piece&) const = default;
  };

  DiskStates(std::unique_ptr<DiskFile> file, const DiskStatesOptions& options);
  ~DiskStates();

  /// A state of zeros, of which nothing is written. `name`: for errors. `parts`: its pieces have piece_numel
  /// / parts elements. `two_places`: each has a second one, so that what was there stays until accept().
  /// Twice the bytes.
  State add(const std::string& name, int64_t numel, int64_t element_bytes, int64_t parts = 1,
            bool two_places = false);
  const DiskStatesOptions& options() const { return options_; }

  /// Elements [begin, begin + numel) of one state, through a buffer of one piece: those of the states that
  /// were looked at last are kept. Throw what transfers do.
  void read(State state, int64_t begin, int64_t numel, std::byte* out);
  void write(State state, int64_t begin, int64_t numel, const std::byte* values);

  /// A transfer of a whole state, with its memory. What is under way must be waited for before it goes.
  class Whole {
   public:
    Whole() = default;
    /// Elements of the state, one behind the other.
    std::byte* memory() const { return memory_.get(); }

   private:
    friend class DiskStates;
    std::shared_ptr<std::byte> memory_;
    std::vector<DiskFile::Ticket> tickets_;
  };
  /// Whether it can be: pieces of a state that has several must be multiples of kAlignment.
  bool moves_whole(State state) const;
  /// Begin to read a state, or make memory for what begin_write() takes. Throw Unsupported where that cannot
  /// be.
  Whole begin_read(State state);
  Whole memory_for(State state) const;
  void begin_write(State state, Whole& values);
  /// Until it is over. Throws what kept it.
  void wait(Whole& transfer);

  /// A sweep: pieces that will be taken, in this order, each once. Replaces an earlier one. The memory of the
  /// ring, `buffers` times the largest piece ever announced, is there from now on.
  void announce(std::vector<Piece> pieces);
  bool is_next(const Piece& piece) const { return next_ < sweep_.size() && sweep_[next_] == piece; }
  /// Whether a piece is one of those that are still to be taken.
  bool is_ahead(const Piece& piece) const;
  /// The next piece is left as it is.
  void skip();
  /// The next piece of the sweep: the memory of each of its states. Until give_back().
  std::vector<std::byte*> take();
  /// Ends take(). With `changed` the values are written, at once or behind; errors of writes behind come with
  /// a later call.
  void give_back(bool changed);
  /// The same where it may turn out that the piece has not changed: the values are written to its second
  /// place and read as if they were not there, until accept().
  void give_back_provisionally();
  /// Whether take() would return, or throw, at once.
  bool is_there() const;
  /// What was given back provisionally is the piece's value. Throws Internal where nothing was.
  void accept(const Piece& piece);
  /// What was given back provisionally and not accepted never was.
  void forget_provisional() { provisional_.clear(); }
  /// Until everything that was given is on the disk. Throws the first error.
  void flush();

  int64_t ring_bytes() const { return static_cast<int64_t>(slots_.size()) * slot_bytes_; }
  const DiskFile& file() const { return *file_; }

 private:
  struct Release {
    int64_t bytes;
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Release>;
  struct Stored {
    std::string name;
    int64_t numel = 0, element_bytes = 0, piece_numel = 0;
    std::vector<DiskFile::Extent> pieces;
    std::vector<DiskFile::Extent> second_places;  // of each piece, or none
  };
  struct Slot {
    Memory memory;
    std::vector<DiskFile::Ticket> reads, writes;
  };
  /// A piece that read() and write() look at.
  struct Window {
    Memory memory;
    int64_t bytes = 0;
    State state = -1;
    int64_t index = 0;
    bool changed = false;
  };

  static Memory allocate(int64_t bytes);
  int64_t bytes_of(const Piece& piece) const;
  void end_taking(bool changed, bool provisionally);
  Slot& slot_of(size_t number) { return slots_[number % slots_.size()]; }
  void start_reads();
  void settle();
  Window& open_window(State state, int64_t index);
  void write_window(Window& window);
  void close_windows();
  void close_windows(State state);
  bool is_read_ahead(State state) const;
  template <class Move>
  void over_window(State state, int64_t begin, int64_t numel, Move move);

  std::unique_ptr<DiskFile> file_;
  DiskStatesOptions options_;
  std::vector<Stored> states_;
  std::vector<Piece> sweep_;
  size_t next_ = 0, started_ = 0;  // in the sweep: to be taken, to be read
  bool is_taken_ = false;
  std::vector<Piece> provisional_;  // in second places
  std::vector<Slot> slots_;
  int64_t slot_bytes_ = 0;
  std::deque<Window> windows_;  // of different states, the last one used first
};

}  // namespace zero::tiers

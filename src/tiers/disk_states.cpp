#include "tiers/disk_states.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "base/checked.h"
#include "zero/error.h"
#include "zero/memory_in_use.h"

namespace zero::tiers {
namespace {

constexpr size_t kWindows = 4;  // a parameter, its master and some of its moments, element by element

/// Waits for all of them, whatever happens; throws the first error.
void wait_all(DiskFile& file, std::vector<DiskFile::Ticket>& tickets) {
  std::exception_ptr failure;
  for (const DiskFile::Ticket ticket : std::exchange(tickets, {})) {
    try {
      file.wait(ticket);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void DiskStates::Release::operator()(std::byte* memory) const {
  std::free(memory);
  detail::count_memory(-bytes);
}

DiskStates::Memory DiskStates::allocate(int64_t bytes) {
  const int64_t whole = std::max(kAlignment, round_up(bytes, kAlignment));
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<size_t>(whole)));
  if (memory == nullptr) throw std::bad_alloc();
  detail::count_memory(whole);
  return Memory(memory, Release{whole});
}

DiskStates::DiskStates(std::unique_ptr<DiskFile> file, const DiskStatesOptions& options)
    : file_(std::move(file)), options_(options) {
  require(options_.piece_numel > 0, ErrorKind::Usage, "DiskStatesOptions::piece_numel",
          std::to_string(options_.piece_numel) + " elements");
  require(options_.buffers >= 2, ErrorKind::Usage, "DiskStatesOptions::buffers",
          std::to_string(options_.buffers) + " buffers: one is worked on while another is moved");
}

// The memory must outlive what is under way.
DiskStates::~DiskStates() { file_.reset(); }

DiskStates::State DiskStates::add(const std::string& name, int64_t numel, int64_t element_bytes,
                                  int64_t parts, bool two_places) {
  const int64_t piece_numel = options_.piece_numel / parts;
  require(piece_numel * parts == options_.piece_numel, ErrorKind::Usage, name,
          "pieces of " + std::to_string(options_.piece_numel) + " elements are no multiple of " +
              std::to_string(parts));
  Stored stored{.name = name,
                .numel = numel,
                .element_bytes = element_bytes,
                .piece_numel = piece_numel,
                .pieces = {},
                .second_places = {}};
  for (int64_t begin = 0; begin < numel; begin += piece_numel) {
    const int64_t bytes = std::min(piece_numel, numel - begin) * element_bytes;
    stored.pieces.push_back(file_->add_extent(bytes));
    if (two_places) stored.second_places.push_back(file_->add_extent(bytes));
  }
  states_.push_back(std::move(stored));
  return static_cast<State>(states_.size()) - 1;
}

int64_t DiskStates::bytes_of(const Piece& piece) const {
  int64_t bytes = 0;
  for (const State state : piece.states)
    bytes += file_->extent_bytes(
        states_.at(static_cast<size_t>(state)).pieces.at(static_cast<size_t>(piece.index)));
  return bytes;
}

void DiskStates::announce(std::vector<Piece> pieces) {
  require(!is_taken_, ErrorKind::Internal, "disk tier", "a new sweep begins while a piece is taken");
  close_windows();
  // What is left of the sweep, say.
  if (std::equal(pieces.begin(), pieces.end(), sweep_.begin() + static_cast<int64_t>(next_), sweep_.end()))
    return;
  // Of a sweep that is over nothing is left but writes, which the slots' next reads come after.
  if (next_ < sweep_.size()) settle();
  int64_t largest = 0;
  for (const Piece& piece : pieces) largest = std::max(largest, bytes_of(piece));
  if (largest > slot_bytes_ || slots_.empty()) {
    settle();
    slots_.clear();
    slots_.resize(static_cast<size_t>(options_.buffers));
    slot_bytes_ = largest;
    for (Slot& slot : slots_) slot.memory = allocate(slot_bytes_);
  }
  sweep_ = std::move(pieces);
  next_ = started_ = 0;
  if (options_.read_ahead) start_reads();
}

// Number n of the sweep goes through slot n % slots, once what was there before is written.
void DiskStates::start_reads() {
  const size_t ahead = options_.read_ahead ? slots_.size() : 1;
  while (started_ < sweep_.size() && started_ < next_ + ahead) {
    Slot& slot = slot_of(started_);
    const Piece& piece = sweep_[started_];
    std::byte* memory = slot.memory.get();
    for (const State state : piece.states) {
      const Stored& stored = states_[static_cast<size_t>(state)];
      const DiskFile::Extent extent = stored.pieces[static_cast<size_t>(piece.index)];
      slot.reads.push_back(file_->read(extent, memory, stored.name, slot.writes));
      memory += file_->extent_bytes(extent);
    }
    started_++;
  }
}

bool DiskStates::is_ahead(const Piece& piece) const {
  const auto rest = sweep_.begin() + static_cast<int64_t>(next_);
  return std::find(rest, sweep_.end(), piece) != sweep_.end();
}

// Through its slot all the same: those after it are being read into the next ones.
void DiskStates::skip() {
  take();
  give_back(/*changed=*/false);
}

std::vector<std::byte*> DiskStates::take() {
  require(next_ < sweep_.size() && !is_taken_, ErrorKind::Internal, "disk tier",
          "a piece is taken that is not the next of its sweep");
  if (started_ <= next_) start_reads();
  Slot& slot = slot_of(next_);
  wait_all(*file_, slot.reads);
  wait_all(*file_, slot.writes);  // over already: the reads came after them
  std::vector<std::byte*> places;
  std::byte* memory = slot.memory.get();
  for (const State state : sweep_[next_].states) {
    places.push_back(memory);
    memory += file_->extent_bytes(
        states_[static_cast<size_t>(state)].pieces[static_cast<size_t>(sweep_[next_].index)]);
  }
  is_taken_ = true;
  return places;
}

bool DiskStates::is_there() const {
  if (next_ >= started_) return false;
  const Slot& slot = slots_[next_ % slots_.size()];
  return std::all_of(slot.reads.begin(), slot.reads.end(),
                     [this](DiskFile::Ticket ticket) { return file_->is_over(ticket); });
}

void DiskStates::give_back(bool changed) { end_taking(changed, /*provisionally=*/false); }

void DiskStates::give_back_provisionally() {
  const Piece& piece = sweep_.at(next_);
  for (const State state : piece.states)
    require(!states_[static_cast<size_t>(state)].second_places.empty(), ErrorKind::Internal, "disk tier",
            states_[static_cast<size_t>(state)].name + " has no second place");
  end_taking(/*changed=*/true, /*provisionally=*/true);
}

void DiskStates::accept(const Piece& piece) {
  const auto found = std::find(provisional_.begin(), provisional_.end(), piece);
  require(found != provisional_.end(), ErrorKind::Internal, "disk tier",
          "a piece is accepted that was not given back provisionally");
  provisional_.erase(found);
  const auto index = static_cast<size_t>(piece.index);
  for (const State state : piece.states) {
    close_windows(state);
    Stored& stored = states_[static_cast<size_t>(state)];
    std::swap(stored.pieces[index], stored.second_places[index]);
  }
}

void DiskStates::end_taking(bool changed, bool provisionally) {
  require(is_taken_, ErrorKind::Internal, "disk tier", "a piece is given back that was not taken");
  is_taken_ = false;
  Slot& slot = slot_of(next_);
  const Piece& piece = sweep_[next_++];
  std::byte* memory = slot.memory.get();
  for (size_t i = 0; changed && i + piece.read_only < piece.states.size(); ++i) {
    const Stored& stored = states_[static_cast<size_t>(piece.states[i])];
    const DiskFile::Extent extent =
        (provisionally ? stored.second_places : stored.pieces)[static_cast<size_t>(piece.index)];
    slot.writes.push_back(file_->write(extent, memory, stored.name));
    memory += file_->extent_bytes(extent);
  }
  if (provisionally) provisional_.push_back(piece);
  if (!options_.write_behind) wait_all(*file_, slot.writes);
  if (options_.read_ahead) start_reads();
}

void DiskStates::flush() {
  for (Window& window : windows_) write_window(window);
  std::exception_ptr failure;
  for (Slot& slot : slots_) {
    try {
      wait_all(*file_, slot.writes);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

// Ends a sweep: what was written is on the disk, what was read ahead is forgotten.
void DiskStates::settle() {
  std::exception_ptr failure;
  for (Slot& slot : slots_) {
    for (std::vector<DiskFile::Ticket>* const tickets : {&slot.reads, &slot.writes}) {
      try {
        wait_all(*file_, *tickets);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
  }
  sweep_.clear();
  next_ = started_ = 0;
  if (failure) std::rethrow_exception(failure);
}

void DiskStates::write_window(Window& window) {
  if (!window.changed) return;
  const Stored& stored = states_[static_cast<size_t>(window.state)];
  window.changed = false;
  file_->wait(
      file_->write(stored.pieces[static_cast<size_t>(window.index)], window.memory.get(), stored.name));
}

void DiskStates::close_windows() {
  for (Window& window : windows_) write_window(window);
  windows_.clear();
}

void DiskStates::close_windows(State state) {
  for (Window& window : windows_) {
    if (window.state != state) continue;
    write_window(window);
    window.state = -1;
  }
}

// A state keeps its window; a new one takes that which was used longest ago.
DiskStates::Window& DiskStates::open_window(State state, int64_t index) {
  auto place = std::find_if(windows_.begin(), windows_.end(),
                            [&](const Window& window) { return window.state == state; });
  if (place == windows_.end() && windows_.size() < kWindows) {
    windows_.emplace_front();
  } else {
    Window window = std::move(place == windows_.end() ? windows_.back() : *place);
    windows_.erase(place == windows_.end() ? std::prev(place) : place);
    windows_.push_front(std::move(window));
  }
  Window& window = windows_.front();
  if (window.state == state && window.index == index) return window;
  write_window(window);
  const Stored& stored = states_.at(static_cast<size_t>(state));
  const DiskFile::Extent extent = stored.pieces.at(static_cast<size_t>(index));
  const int64_t bytes = file_->extent_bytes(extent);
  window.state = -1;
  if (window.bytes < bytes) {
    window.memory = allocate(bytes);
    window.bytes = bytes;
  }
  file_->wait(file_->read(extent, window.memory.get(), stored.name));
  window.state = state;
  window.index = index;
  return window;
}

bool DiskStates::moves_whole(State state) const {
  const Stored& stored = states_.at(static_cast<size_t>(state));
  return stored.pieces.size() <= 1 || stored.piece_numel * stored.element_bytes % kAlignment == 0;
}

DiskStates::Whole DiskStates::memory_for(State state) const {
  const Stored& stored = states_.at(static_cast<size_t>(state));
  require(moves_whole(state), ErrorKind::Unsupported, stored.name,
          "is moved as a whole, but its pieces of " +
              std::to_string(stored.piece_numel * stored.element_bytes) + " bytes are no multiples of " +
              std::to_string(kAlignment),
          "choose a multiple of " + std::to_string(kAlignment) + " for offload.piece_numel");
  Whole whole;
  const int64_t bytes = std::max(kAlignment, round_up(stored.numel * stored.element_bytes, kAlignment));
  whole.memory_ = options_.whole_memory ? options_.whole_memory(bytes) : allocate(bytes);
  return whole;
}

DiskStates::Whole DiskStates::begin_read(State state) {
  close_windows(state);
  Whole whole = memory_for(state);
  const Stored& stored = states_[static_cast<size_t>(state)];
  std::byte* memory = whole.memory_.get();
  for (const DiskFile::Extent extent : stored.pieces) {
    whole.tickets_.push_back(file_->read(extent, memory, stored.name));
    memory += file_->extent_bytes(extent);
  }
  return whole;
}

// What a sweep has read of the state before is out of date.
void DiskStates::begin_write(State state, Whole& values) {
  close_windows(state);
  if (is_read_ahead(state)) settle();
  const Stored& stored = states_[static_cast<size_t>(state)];
  std::byte* memory = values.memory_.get();
  for (const DiskFile::Extent extent : stored.pieces) {
    values.tickets_.push_back(file_->write(extent, memory, stored.name));
    memory += file_->extent_bytes(extent);
  }
}

void DiskStates::wait(Whole& transfer) { wait_all(*file_, transfer.tickets_); }

bool DiskStates::is_read_ahead(State state) const {
  for (size_t i = next_; i < started_; ++i)
    if (std::find(sweep_[i].states.begin(), sweep_[i].states.end(), state) != sweep_[i].states.end())
      return true;
  return false;
}

// move(at, window, from, bytes) for the parts of a range that lie in one piece each: `at` from the range's
// begin, `from` from the window's, all in bytes.
template <class Move>
void DiskStates::over_window(State state, int64_t begin, int64_t numel, Move move) {
  require(!is_taken_, ErrorKind::Internal, "disk tier", "a state is looked at while a piece is taken");
  if (!sweep_.empty()) settle();
  const Stored& stored = states_.at(static_cast<size_t>(state));
  const int64_t size = stored.element_bytes, most = stored.piece_numel;
  for (int64_t at = begin; at < begin + numel;) {
    const int64_t index = at / most, first = index * most;
    const int64_t stop = std::min(begin + numel, first + most);
    move((at - begin) * size, open_window(state, index), (at - first) * size, (stop - at) * size);
    at = stop;
  }
}

void DiskStates::read(State state, int64_t begin, int64_t numel, std::byte* out) {
  over_window(state, begin, numel, [&](int64_t at, const Window& window, int64_t from, int64_t bytes) {
    std::memcpy(out + at, window.memory.get() + from, static_cast<size_t>(bytes));
  });
}

void DiskStates::write(State state, int64_t begin, int64_t numel, const std::byte* values) {
  over_window(state, begin, numel, [&](int64_t at, Window& window, int64_t from, int64_t bytes) {
    std::memcpy(window.memory.get() + from, values + at, static_cast<size_t>(bytes));
    window.changed = true;
  });
}

}  // namespace zero::tiers

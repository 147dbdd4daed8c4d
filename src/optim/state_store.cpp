#include "optim/state_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "compute/memory_purpose.h"
#include "compute/zeros.h"
#include "optim/host_tier.h"
#include "optim/passing_memory.h"
#include "tiers/disk_states.h"
#include "zero/error.h"

namespace zero {

struct StateStore::State {
  std::string kind, name;  // name: "unit 3, exp_avg"
  at::Tensor values;       // on disk: of its shape, without memory
  Tier tier = Tier::Device;
  bool owned = false;
  std::function<void()> arrive;              // of adopted values
  detail::PassingMemory* passing = nullptr;  // of its values, if they do not last
  size_t place = 0;                          // there
  int on_disk = -1;                          // its number there
  int64_t elements_each = 1;
  int readers = 0;
  bool written = false;

  bool is_lent() const { return written || readers > 0; }
};

namespace {

std::byte* bytes_of(const at::Tensor& memory) { return static_cast<std::byte*>(memory.mutable_data_ptr()); }

tiers::DiskStates::Piece on_disk_of(const StatePiece& piece, std::vector<int> numbers,
                                    const tiers::DiskStates& disk) {
  return {.states = std::move(numbers), .index = piece.begin / disk.options().piece_numel};
}

detail::MemoryPurpose purpose_of(std::string_view kind) {
  if (kind == kParameterState) return detail::MemoryPurpose::Shards;
  if (kind == kMasterState) return detail::MemoryPurpose::Master;
  return detail::MemoryPurpose::OptimizerStates;
}

}  // namespace

StateStore::StateStore() = default;
StateStore::~StateStore() = default;

StateStore::Lease& StateStore::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  end();
  states_ = std::move(other.states_);
  lent_ = std::move(other.lent_);
  fetched_ = std::move(other.fetched_);
  store_ = other.store_;
  is_of_sweep_ = std::exchange(other.is_of_sweep_, false);
  is_provisional_ = other.is_provisional_;
  use_ = other.use_;
  other.states_.clear();
  other.fetched_.clear();
  return *this;
}

const at::Tensor& StateStore::Lease::operator[](std::string_view kind) const {
  static const at::Tensor none;
  for (const auto& [lent, values] : lent_)
    if (lent == kind) return values;
  return none;
}

void StateStore::Lease::end() noexcept {
  lent_.clear();
  if (store_ != nullptr) store_->put_back(*this);
  for (State* state : states_) {
    if (use_ == Use::Shape) continue;
    if (use_ == Use::Write)
      state->written = false;
    else
      state->readers--;
  }
  states_.clear();
}

std::string StateStore::name_of(int unit, std::string_view kind) {
  return "unit " + std::to_string(unit) + ", " + std::string(kind);
}

StateStore::Entry& StateStore::add_entry(int unit, std::string_view kind) {
  const auto [place, is_new] = entries_.try_emplace({unit, std::string(kind)});
  require(is_new, ErrorKind::Usage, name_of(unit, kind), "the unit has such a state already");
  return place->second;
}

StateStore::State& StateStore::add(int unit, std::string_view kind, const at::Tensor& values) {
  Entry& entry = add_entry(unit, kind);
  states_.push_back(std::make_unique<State>());
  State& state = *states_.back();
  state.kind = kind;
  state.name = name_of(unit, kind);
  state.values = values;
  entry = {.state = &state, .begin = 0, .numel = values.numel()};
  return state;
}

void StateStore::create(int unit, std::string_view kind, int64_t numel, const at::TensorOptions& options,
                        Tier tier, int64_t elements_each) {
  const bool on_cpu = options.device().is_cpu();
  require(tier == Tier::Device || on_cpu || host_ != nullptr, ErrorKind::Unsupported, name_of(unit, kind),
          "no memory of the host was given for tier " + std::string(to_string(tier)));
  require(tier != Tier::Disk || disk_ != nullptr, ErrorKind::Usage, name_of(unit, kind),
          "no disk was given to keep it on");
  const bool on_disk = tier == Tier::Disk;
  const detail::MemoryPurposeScope purpose(purpose_of(kind));
  const auto values = [&] {
    if (on_disk) return at::from_blob(nullptr, {numel}, options.device(c10::kCPU));
    if (tier == Tier::Host && host_ != nullptr)
      return host_->memory.zeros(numel, c10::typeMetaToScalarType(options.dtype()));
    return detail::zeros(numel, options);
  };
  State& state = add(unit, kind, values());
  state.owned = true;
  state.tier = tier;
  state.elements_each = elements_each;
  if (on_disk)
    state.on_disk =
        disk_->add(state.name, numel, static_cast<int64_t>(state.values.itemsize()), elements_each);
}

void StateStore::create_passing(std::string_view kind, std::span<const int> units,
                                const std::vector<int64_t>& numels, const at::TensorOptions& options,
                                Tier tier) {
  require(tier == Tier::Device, ErrorKind::Unsupported, kind,
          "states whose values do not last cannot be in tier " + std::string(to_string(tier)));
  auto& memory = passing_[std::string(kind)];
  require(memory == nullptr, ErrorKind::Usage, kind, "there are such states already");
  memory = std::make_unique<detail::PassingMemory>(numels, options);
  for (size_t i = 0; i < units.size(); ++i) {
    State& state = add(units[i], kind, memory->tensor(i));
    state.owned = true;
    state.tier = tier;
    state.passing = memory.get();
    state.place = i;
  }
}

void StateStore::create_view(int unit, std::string_view kind, std::string_view of, int64_t begin,
                             int64_t numel) {
  const auto found = entries_.find({unit, std::string(of)});
  require(found != entries_.end(), ErrorKind::Usage, name_of(unit, kind),
          "the unit has no state " + std::string(of));
  const Entry whole = found->second;
  require(whole.state->on_disk < 0, ErrorKind::Unsupported, name_of(unit, kind),
          std::string(of) + " is on disk, which lends whole states only");
  require(begin >= 0 && numel >= 0 && begin + numel <= whole.numel, ErrorKind::Usage, name_of(unit, kind),
          "elements [" + std::to_string(begin) + ", " + std::to_string(begin + numel) + ") of " +
              std::string(of) + ", which has " + std::to_string(whole.numel));
  add_entry(unit, kind) = {.state = whole.state, .begin = whole.begin + begin, .numel = numel};
}

void StateStore::adopt(int unit, std::string_view kind, const at::Tensor& values,
                       std::function<void()> arrive) {
  add(unit, kind, values).arrive = std::move(arrive);
}

bool StateStore::holds(int unit, std::string_view kind) const {
  return entries_.contains({unit, std::string(kind)});
}

bool StateStore::is_on_disk(int unit, std::string_view kind) const {
  const auto found = entries_.find({unit, std::string(kind)});
  return found != entries_.end() && found->second.state->on_disk >= 0;
}

int64_t StateStore::elements_each(int unit, std::string_view kind) const {
  const auto found = entries_.find({unit, std::string(kind)});
  return found == entries_.end() ? 1 : found->second.state->elements_each;
}

void StateStore::borrow(State& state, Use use) {
  const bool free = !state.written && (use == Use::Read || state.readers == 0);
  require(free, ErrorKind::Internal, state.name, "it is lent already");
  // The store's own tensor is all that keeps the memory of a state that nobody borrows. On devices, transfers
  // may keep theirs until the device has come by; passing states may share one storage.
  const bool is_sole = state.owned && state.passing == nullptr && state.values.is_cpu();
  const bool kept = is_sole && !state.is_lent() && state.values.storage().use_count() > 1;
  require(!kept, ErrorKind::Internal, state.name, "a tensor was kept beyond its lease");
  if (use == Use::Read) {
    state.readers++;
    return;
  }
  if (state.passing != nullptr) state.passing->hold(state.place);
  state.written = true;
}

StateStore::Lease StateStore::lend(int unit, std::span<const std::string_view> kinds, Use use) {
  return lend(StatePiece{.unit = unit, .begin = 0, .end = -1}, kinds, use);
}

// An end of -1: all of each, which may be more of one than of another.
StateStore::Lease StateStore::lend(const StatePiece& piece, std::span<const std::string_view> kinds,
                                   Use use) {
  throw_failure();
  Lease lease;
  lease.use_ = use;
  const auto [unit, from, to] = piece;
  for (const std::string_view kind : kinds) {
    const auto found = entries_.find({unit, std::string(kind)});
    if (found == entries_.end()) continue;
    const auto& [state, begin, numel] = found->second;
    if (std::find(lease.states_.begin(), lease.states_.end(), state) == lease.states_.end()) {
      if (use != Use::Shape) borrow(*state, use);
      if (use != Use::Shape && state->arrive) state->arrive();
      lease.states_.push_back(state);
    }
    const int64_t each = state->elements_each;
    const int64_t first = begin + from / each, count = to < 0 ? numel : (to - from + each - 1) / each;
    if (use != Use::Shape && state->on_disk >= 0) {
      lease.fetched_.push_back({.state = state, .begin = first, .numel = count});
      continue;
    }
    const bool is_whole = count == state->values.numel();
    lease.lent_.emplace_back(found->first.second,
                             is_whole ? state->values.alias() : state->values.narrow(0, first, count));
  }
  lease.store_ = this;
  if (!lease.fetched_.empty()) fetch(lease);
  return lease;
}

void StateStore::fetch(Lease& lease) {
  // Nothing is put back of what did not come.
  std::vector<Lease::Fetched> wanted = std::exchange(lease.fetched_, {});
  const int64_t piece_numel = disk_->options().piece_numel;
  const Lease::Fetched& front = wanted.front();
  tiers::DiskStates::Piece piece{.states = {},
                                 .index = front.begin * front.state->elements_each / piece_numel};
  bool is_piece = true;
  for (const Lease::Fetched& one : wanted) {
    piece.states.push_back(one.state->on_disk);
    const int64_t most = piece_numel / one.state->elements_each, begin = piece.index * most;
    is_piece =
        is_piece && one.begin == begin && one.numel == std::min(most, one.state->values.numel() - begin);
  }
  lease.is_of_sweep_ = is_piece && disk_->is_next(piece);
  if (lease.is_of_sweep_) {
    const std::vector<std::byte*> memory = disk_->take();
    for (size_t i = 0; i < wanted.size(); ++i)
      wanted[i].memory = at::from_blob(memory[i], {wanted[i].numel}, wanted[i].state->values.options());
  } else {
    for (Lease::Fetched& one : wanted) {
      one.memory = at::empty({one.numel}, one.state->values.options());
      disk_->read(one.state->on_disk, one.begin, one.numel, bytes_of(one.memory));
    }
  }
  lease.fetched_ = std::move(wanted);
  for (const Lease::Fetched& one : lease.fetched_)
    lease.lent_.emplace_back(one.state->kind, one.memory.alias());
}

void StateStore::put_back(Lease& lease) noexcept {
  if (lease.fetched_.empty()) return;
  try {
    for (const Lease::Fetched& one : lease.fetched_)
      require(one.memory.storage().use_count() == 1, ErrorKind::Internal, one.state->name,
              "a tensor was kept beyond its lease");
    if (lease.is_provisional_) {
      disk_->give_back_provisionally();
    } else if (lease.is_of_sweep_) {
      disk_->give_back(lease.use_ == Use::Write);
    } else if (lease.use_ == Use::Write) {
      for (const Lease::Fetched& one : lease.fetched_)
        disk_->write(one.state->on_disk, one.begin, one.numel, bytes_of(one.memory));
    }
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  lease.fetched_.clear();
  lease.is_of_sweep_ = false;
}

void StateStore::throw_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void StateStore::keep_on_disk(std::unique_ptr<tiers::DiskStates> disk) {
  require(disk_ == nullptr, ErrorKind::Usage, "StateStore", "it has a disk already");
  disk_ = std::move(disk);
}

void StateStore::keep_on_host(std::unique_ptr<HostTier> host) {
  require(host_ == nullptr, ErrorKind::Usage, "StateStore", "it has memory of the host already");
  host_ = std::move(host);
}

std::vector<StatePiece> StateStore::pieces_of(int unit, std::span<const std::string_view> kinds) const {
  int64_t numel = 0;
  bool on_disk = false, beside_device = false;
  for (const std::string_view kind : kinds) {
    const auto found = entries_.find({unit, std::string(kind)});
    if (found == entries_.end()) continue;
    numel = std::max(numel, found->second.numel * found->second.state->elements_each);
    on_disk = on_disk || found->second.state->on_disk >= 0;
    beside_device = beside_device || (host_ != nullptr && found->second.state->tier != Tier::Device);
  }
  const int64_t step = on_disk         ? disk_->options().piece_numel
                       : beside_device ? host_->piece_numel
                                       : std::max<int64_t>(numel, 1);
  std::vector<StatePiece> pieces;
  for (int64_t begin = 0; begin < numel; begin += step)
    pieces.push_back({.unit = unit, .begin = begin, .end = std::min(begin + step, numel)});
  return pieces;
}

std::vector<int> StateStore::on_disk(int unit, std::span<const std::string_view> kinds) const {
  std::vector<int> numbers;
  for (const std::string_view kind : kinds) {
    const auto found = entries_.find({unit, std::string(kind)});
    if (found != entries_.end() && found->second.state->on_disk >= 0)
      numbers.push_back(found->second.state->on_disk);
  }
  return numbers;
}

StateStore::Lease StateStore::lend_provisionally(const StatePiece& piece,
                                                 std::span<const std::string_view> kinds) {
  Lease lease = lend(piece, kinds, Use::Write);
  require(lease.is_of_sweep_ && lease.fetched_.size() == lease.states_.size(), ErrorKind::Internal,
          name_of(piece.unit, kinds.empty() ? "" : kinds.front()),
          "what is written provisionally is not the next piece of a sweep over states on disk");
  lease.is_provisional_ = true;
  return lease;
}

bool StateStore::is_there(const StatePiece& piece, std::span<const std::string_view> kinds) const {
  return disk_ != nullptr && disk_->is_next(on_disk_of(piece, on_disk(piece.unit, kinds), *disk_)) &&
         disk_->is_there();
}

void StateStore::accept(const StatePiece& piece, std::span<const std::string_view> kinds) {
  disk_->accept(on_disk_of(piece, on_disk(piece.unit, kinds), *disk_));
}

void StateStore::forget_provisional() {
  if (disk_ != nullptr) disk_->forget_provisional();
}

void StateStore::announce(std::span<const StatePiece> pieces, std::span<const std::string_view> kinds) {
  throw_failure();
  if (disk_ == nullptr) return;
  std::vector<tiers::DiskStates::Piece> sweep;
  for (const StatePiece& piece : pieces) {
    tiers::DiskStates::Piece next = on_disk_of(piece, on_disk(piece.unit, kinds), *disk_);
    if (!next.states.empty()) sweep.push_back(std::move(next));
  }
  disk_->announce(std::move(sweep));
}

void StateStore::flush() {
  throw_failure();
  if (disk_ != nullptr) disk_->flush();
}

void StateStore::discard(std::string_view kind) {
  for (const auto& state : states_)
    require(state->kind != kind || !state->is_lent(), ErrorKind::Internal, state->name,
            "it is lent and cannot be discarded");
  const auto found = passing_.find(kind);
  if (found != passing_.end()) found->second->release();
}

int64_t StateStore::owned_bytes(Tier tier) const {
  int64_t bytes = 0;
  for (const auto& state : states_)
    if (state->owned && state->tier == tier) bytes += static_cast<int64_t>(state->values.nbytes());
  return bytes;
}

int64_t StateStore::owned_bytes(std::string_view kind) const {
  int64_t bytes = 0;
  for (const auto& state : states_)
    if (state->owned && state->kind == kind) bytes += static_cast<int64_t>(state->values.nbytes());
  return bytes;
}

}  // namespace zero

#include "optim/state_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "compute/memory_purpose.h"
#include "compute/zeros.h"
#include "optim/host_tier.h"
#include "optim/passing_memory.h"
#include "seam/storage_access.h"
#include "tiers/disk_states.h"
#include "zero/error.h"

namespace zero {

struct StateStore::State {
  std::string kind, name;  // name: "unit 3, exp_avg"
  at::Tensor values;       // on disk: of its shape, without memory
  Tier tier = Tier::Device;
  bool owned = false;
  std::function<void()> arrive;              // of adopted values
  std::function<void()> settle;              // before it is lent
  detail::PassingMemory* passing = nullptr;  // of its values, if they do not last
  size_t place = 0;                          // there
  int on_disk = -1;                          // its number there
  bool passes = false, has_values = false;   // on disk: values do not last, and there are some
  bool is_brief = false;                     // they do not last, in memory of its own
  int64_t elements_each = 1;
  int readers = 0;
  bool written = false;

  bool is_lent() const { return written || readers > 0; }
};

/// A whole state of the disk: its memory, and what is under way to or from there.
struct StateStore::Transfer {
  tiers::DiskStates* disk = nullptr;
  tiers::DiskStates::Whole whole = {};
  bool is_over = true;

  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  // Memory must outlive what is under way; who wanted an error has asked for it before.
  ~Transfer() {
    try {
      wait();
    } catch (...) {
    }
  }
  void wait() {
    if (!std::exchange(is_over, true)) disk->wait(whole);
  }
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
StateStore::~StateStore() { behind_.reset(); }

StateStore::Lease& StateStore::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  end();
  states_ = std::move(other.states_);
  lent_ = std::move(other.lent_);
  fetched_ = std::move(other.fetched_);
  store_ = other.store_;
  is_of_sweep_ = std::exchange(other.is_of_sweep_, false);
  is_provisional_ = std::exchange(other.is_provisional_, false);
  forgets_ = std::exchange(other.forgets_, false);
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
  for (const auto& [state, use] : states_) {
    if (use == Use::Write) state->written = false;
    if (use == Use::Read) state->readers--;
  }
  states_.clear();
}

void StateStore::Lease::forget() noexcept {
  forgets_ = true;
  end();
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
  create(unit, kind, numel, options, tier, elements_each, /*passes=*/false);
}

void StateStore::create(int unit, std::string_view kind, int64_t numel, const at::TensorOptions& options,
                        Tier tier, int64_t elements_each, bool passes) {
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
  state.passes = on_disk && passes;
  const auto at = static_cast<size_t>(unit);
  if (on_disk) put_on_disk(state, !passes && at < two_places_.size() && two_places_[at]);
}

void StateStore::put_on_disk(State& state, bool two_places) {
  state.on_disk = disk_->add(state.name, state.values.numel(), static_cast<int64_t>(state.values.itemsize()),
                             state.elements_each, two_places);
}

void StateStore::create_passing(std::string_view kind, std::span<const int> units,
                                const std::vector<int64_t>& numels, const at::TensorOptions& options,
                                Tier tier) {
  if (tier == Tier::Disk) {
    for (size_t i = 0; i < units.size(); ++i)
      create(units[i], kind, numels[i], options, tier, /*elements_each=*/1, /*passes=*/true);
    return;
  }
  require(tier == Tier::Device || options.device().is_cpu(), ErrorKind::Unsupported, kind,
          "states of a device whose values do not last cannot be in tier " + std::string(to_string(tier)));
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

void StateStore::create_brief(std::string_view kind, std::span<const int> units,
                              const std::vector<int64_t>& numels, const at::TensorOptions& options) {
  const detail::MemoryPurposeScope purpose(detail::MemoryPurpose::Gradients);
  for (size_t i = 0; i < units.size(); ++i) {
    State& state = add(units[i], kind, at::empty({numels[i]}, options));
    detail::release_memory(state.values);
    state.owned = true;
    state.is_brief = true;
  }
}

void StateStore::create_view(int unit, std::string_view kind, std::string_view of, int64_t begin,
                             int64_t numel) {
  const auto found = entries_.find({unit, std::string(of)});
  require(found != entries_.end(), ErrorKind::Usage, name_of(unit, kind),
          "the unit has no state " + std::string(of));
  const Entry whole = found->second;
  require(whole.state->on_disk < 0 || (begin == 0 && numel == whole.numel), ErrorKind::Unsupported,
          name_of(unit, kind), std::string(of) + " is on disk, which lends whole states only");
  require(begin >= 0 && numel >= 0 && begin + numel <= whole.numel, ErrorKind::Usage, name_of(unit, kind),
          "elements [" + std::to_string(begin) + ", " + std::to_string(begin + numel) + ") of " +
              std::string(of) + ", which has " + std::to_string(whole.numel));
  add_entry(unit, kind) = {.state = whole.state, .begin = whole.begin + begin, .numel = numel};
}

void StateStore::adopt(int unit, std::string_view kind, const at::Tensor& values,
                       std::function<void()> arrive) {
  add(unit, kind, values).arrive = std::move(arrive);
}

void StateStore::when_lent(int unit, std::string_view kind, std::function<void()> settle) {
  const auto found = entries_.find({unit, std::string(kind)});
  require(found != entries_.end(), ErrorKind::Usage, name_of(unit, kind), "the unit has no such state");
  found->second.state->settle = std::move(settle);
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
  const bool is_sole = state.owned && state.passing == nullptr && !state.is_brief && state.values.is_cpu();
  const bool kept = is_sole && !state.is_lent() && state.values.storage().use_count() > 1;
  require(!kept, ErrorKind::Internal, state.name, "a tensor was kept beyond its lease");
  if (use == Use::Read) {
    state.readers++;
    return;
  }
  if (state.passing != nullptr) state.passing->hold(state.place);
  if (state.is_brief) {
    const detail::MemoryPurposeScope purpose(detail::MemoryPurpose::Gradients);
    detail::obtain_memory(state.values);
  }
  state.written = true;
}

StateStore::Lease StateStore::lend(int unit, std::span<const std::string_view> kinds, Use use) {
  return lend(StatePiece{.unit = unit, .begin = 0, .end = -1}, kinds, use);
}

// An end of -1: all of each, which may be more of one than of another.
StateStore::Lease StateStore::lend(const StatePiece& piece, std::span<const std::string_view> kinds, Use use,
                                   std::span<const std::string_view> read_only) {
  throw_failure();
  Lease lease;
  lease.store_ = this;
  for (const std::string_view kind : kinds) add_to(lease, piece, kind, use);
  // What is read takes memory, too.
  if (use == Use::Read && !lease.fetched_.empty()) finish_behind();
  for (const std::string_view kind : read_only)
    add_to(lease, piece, kind, use == Use::Shape ? use : Use::Read);
  if (!lease.fetched_.empty()) fetch(lease, /*ahead=*/false);
  return lease;
}

StateStore::Lease StateStore::lend_ahead(int unit, std::span<const std::string_view> kinds) {
  throw_failure();
  Lease lease;
  lease.store_ = this;
  for (const std::string_view kind : kinds)
    add_to(lease, {.unit = unit, .begin = 0, .end = -1}, kind, Use::Read);
  if (!lease.fetched_.empty()) fetch(lease, /*ahead=*/true);
  return lease;
}

// Borrows a state, and lends it where it is in memory.
void StateStore::add_to(Lease& lease, const StatePiece& piece, std::string_view kind, Use use) {
  const auto found = entries_.find({piece.unit, std::string(kind)});
  if (found == entries_.end()) return;
  const std::string_view name = found->first.second;
  const auto& [state, begin, numel] = found->second;
  const auto is_it = [state = state](const auto& one) { return one.state == state; };
  if (std::none_of(lease.states_.begin(), lease.states_.end(), is_it)) {
    if (use != Use::Shape && state->settle) state->settle();
    if (use != Use::Shape) borrow(*state, use);
    if (use != Use::Shape && state->arrive) state->arrive();
    lease.states_.push_back({.state = state, .use = use});
  }
  const int64_t each = state->elements_each;
  const int64_t first = begin + piece.begin / each;
  const int64_t count = piece.end < 0 ? numel : (piece.end - piece.begin + each - 1) / each;
  if (use != Use::Shape && state->on_disk >= 0) {
    const auto known = std::find_if(lease.fetched_.begin(), lease.fetched_.end(), is_it);
    if (known != lease.fetched_.end()) return known->kinds.push_back(name);
    return lease.fetched_.push_back(
        {.kinds = {name}, .state = state, .use = use, .begin = first, .numel = count});
  }
  const bool is_whole = count == state->values.numel();
  lease.lent_.emplace_back(name, is_whole ? state->values.alias() : state->values.narrow(0, first, count));
}

void StateStore::fetch(Lease& lease, bool ahead) {
  // Nothing is put back of what did not come.
  std::vector<Lease::Fetched> wanted = std::exchange(lease.fetched_, {});
  lease.is_of_sweep_ = !ahead && take_from_sweep(wanted);
  if (!lease.is_of_sweep_) {
    for (Lease::Fetched& one : wanted) {
      begin_fetch(one);
      one.may_be_kept = one.whole != nullptr && (ahead || one.state->passes);
    }
  }
  if (!ahead)
    for (const Lease::Fetched& one : wanted)
      if (one.whole != nullptr) one.whole->wait();
  lease.fetched_ = std::move(wanted);
  for (const Lease::Fetched& one : lease.fetched_)
    for (const std::string_view kind : one.kinds) lease.lent_.emplace_back(kind, one.memory.alias());
}

bool StateStore::take_from_sweep(std::vector<Lease::Fetched>& wanted) {
  const int64_t piece_numel = disk_->options().piece_numel;
  const Lease::Fetched& front = wanted.front();
  tiers::DiskStates::Piece piece{.states = {},
                                 .index = front.begin * front.state->elements_each / piece_numel};
  const bool writes = front.use == Use::Write;
  for (const Lease::Fetched& one : wanted) {
    piece.states.push_back(one.state->on_disk);
    piece.read_only += writes && one.use == Use::Read ? 1 : 0;
    const int64_t most = piece_numel / one.state->elements_each, begin = piece.index * most;
    if (one.begin != begin || one.numel != std::min(most, one.state->values.numel() - begin)) return false;
  }
  if (!disk_->is_next(piece)) return false;
  const std::vector<std::byte*> memory = disk_->take();
  for (size_t i = 0; i < wanted.size(); ++i)
    wanted[i].memory = at::from_blob(memory[i], {wanted[i].numel}, wanted[i].state->values.options());
  return true;
}

// Of a whole state the values are on their way afterwards. Those that are not there yet are not read.
void StateStore::begin_fetch(Lease::Fetched& one) {
  const State& state = *one.state;
  if (one.numel != state.values.numel() || !disk_->moves_whole(state.on_disk)) {
    one.memory = at::empty({one.numel}, state.values.options());
    return disk_->read(state.on_disk, one.begin, one.numel, bytes_of(one.memory));
  }
  const bool reads = !state.passes || state.has_values;
  one.whole = std::make_shared<Transfer>();
  one.whole->disk = disk_.get();
  one.whole->whole = reads ? disk_->begin_read(state.on_disk) : disk_->memory_for(state.on_disk);
  one.whole->is_over = !reads;
  one.memory = at::from_blob(
      one.whole->whole.memory(), {one.numel}, [keeps = one.whole](void*) {}, state.values.options());
}

void StateStore::Lease::arrive() {
  for (const Fetched& one : fetched_)
    if (one.whole != nullptr) one.whole->wait();
}

void StateStore::put_back(Lease& lease) noexcept {
  if (lease.fetched_.empty()) return;
  const bool writes = lease.fetched_.front().use == Use::Write;
  try {
    for (const Lease::Fetched& one : lease.fetched_)
      require(one.may_be_kept || one.memory.storage().use_count() == 1, ErrorKind::Internal, one.state->name,
              "a tensor was kept beyond its lease");
    if (lease.is_provisional_)
      disk_->give_back_provisionally();
    else if (lease.is_of_sweep_)
      disk_->give_back(writes);
    for (Lease::Fetched& one : lease.fetched_) {
      if (lease.is_of_sweep_ || one.use != Use::Write || (lease.forgets_ && one.state->passes)) continue;
      if (one.whole != nullptr)
        write_behind(one);
      else
        disk_->write(one.state->on_disk, one.begin, one.numel, bytes_of(one.memory));
    }
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  for (const Lease::Fetched& one : lease.fetched_)
    if (one.whole != nullptr) one.memory.storage().set_data_ptr_noswap(c10::DataPtr(nullptr, at::kCPU));
  lease.fetched_.clear();
  lease.is_of_sweep_ = false;
}

void StateStore::write_behind(Lease::Fetched& one) {
  finish_behind();
  one.state->has_values = true;
  disk_->begin_write(one.state->on_disk, one.whole->whole);
  one.whole->is_over = false;
  behind_ = one.whole;
}

void StateStore::finish_behind() {
  if (const auto transfer = std::exchange(behind_, nullptr)) transfer->wait();
}

void StateStore::throw_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void StateStore::keep_on_disk(std::unique_ptr<tiers::DiskStates> disk, std::vector<char> two_places) {
  require(disk_ == nullptr, ErrorKind::Usage, "StateStore", "it has a disk already");
  two_places_ = std::move(two_places);
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
    if (found == entries_.end() || found->second.state->on_disk < 0) continue;
    // What has two names comes once.
    const int number = found->second.state->on_disk;
    if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
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

bool StateStore::is_next(const StatePiece& piece, std::span<const std::string_view> kinds) const {
  return disk_ != nullptr && disk_->is_next(on_disk_of(piece, on_disk(piece.unit, kinds), *disk_));
}

bool StateStore::is_there(const StatePiece& piece, std::span<const std::string_view> kinds) const {
  return is_next(piece, kinds) && disk_->is_there();
}

bool StateStore::skip_to(const StatePiece& piece, std::span<const std::string_view> kinds) {
  if (disk_ == nullptr) return false;
  const tiers::DiskStates::Piece wanted = on_disk_of(piece, on_disk(piece.unit, kinds), *disk_);
  if (!disk_->is_ahead(wanted)) return false;
  while (!disk_->is_next(wanted)) disk_->skip();
  return true;
}

void StateStore::accept(const StatePiece& piece, std::span<const std::string_view> kinds) {
  disk_->accept(on_disk_of(piece, on_disk(piece.unit, kinds), *disk_));
}

void StateStore::forget_provisional() {
  if (disk_ != nullptr) disk_->forget_provisional();
}

void StateStore::announce(std::span<const StatePiece> pieces, std::span<const std::string_view> kinds,
                          std::span<const std::string_view> read_only) {
  throw_failure();
  if (disk_ == nullptr) return;
  std::vector<tiers::DiskStates::Piece> sweep;
  for (const StatePiece& piece : pieces) {
    std::vector<int> numbers = on_disk(piece.unit, kinds);
    const std::vector<int> looked_at = on_disk(piece.unit, read_only);
    const bool writes = !numbers.empty();
    numbers.insert(numbers.end(), looked_at.begin(), looked_at.end());
    tiers::DiskStates::Piece next = on_disk_of(piece, std::move(numbers), *disk_);
    if (writes) next.read_only = looked_at.size();
    if (!next.states.empty()) sweep.push_back(std::move(next));
  }
  disk_->announce(std::move(sweep));
}

void StateStore::flush() {
  throw_failure();
  finish_behind();
  if (disk_ != nullptr) disk_->flush();
}

void StateStore::discard(std::string_view kind) {
  for (const auto& state : states_)
    require(state->kind != kind || !state->is_lent(), ErrorKind::Internal, state->name,
            "it is lent and cannot be discarded");
  try {
    finish_behind();  // its memory goes
  } catch (...) {
    failure_ = std::current_exception();
  }
  for (const auto& state : states_) {
    if (state->kind != kind) continue;
    state->has_values = false;
    if (state->is_brief) detail::release_memory(state->values);
  }
  const auto found = passing_.find(kind);
  if (found != passing_.end()) found->second->release();
}

void StateStore::use_up(int unit, std::string_view kind) {
  const auto found = entries_.find({unit, std::string(kind)});
  require(found != entries_.end(), ErrorKind::Internal, name_of(unit, kind), "the unit has no such state");
  State& state = *found->second.state;
  require(!state.is_lent(), ErrorKind::Internal, state.name, "it is lent and cannot be used up");
  state.has_values = false;
  if (state.is_brief) detail::release_memory(state.values);
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

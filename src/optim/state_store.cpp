#include "optim/state_store.h"

#include <algorithm>

#include "compute/memory_purpose.h"
#include "compute/zeros.h"
#include "optim/passing_memory.h"
#include "zero/error.h"

namespace zero {

struct StateStore::State {
  std::string kind, name;  // name: "unit 3, exp_avg"
  at::Tensor values;
  Tier tier = Tier::Device;
  bool owned = false;
  detail::PassingMemory* passing = nullptr;  // of its values, if they do not last
  size_t place = 0;                          // there
  int readers = 0;
  bool written = false;

  bool is_lent() const { return written || readers > 0; }
};

namespace {

void require_known(Tier tier, std::string_view kind) {
  require(tier == Tier::Device, ErrorKind::Unsupported, kind,
          "states can be in device memory only, not in tier " + std::string(to_string(tier)));
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
  use_ = other.use_;
  other.states_.clear();
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
  for (State* state : states_) {
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
                        Tier tier) {
  require_known(tier, kind);
  const detail::MemoryPurposeScope purpose(purpose_of(kind));
  State& state = add(unit, kind, detail::zeros(numel, options));
  state.owned = true;
  state.tier = tier;
}

void StateStore::create_passing(std::string_view kind, std::span<const int> units,
                                const std::vector<int64_t>& numels, const at::TensorOptions& options,
                                Tier tier) {
  require_known(tier, kind);
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
  require(begin >= 0 && numel >= 0 && begin + numel <= whole.numel, ErrorKind::Usage, name_of(unit, kind),
          "elements [" + std::to_string(begin) + ", " + std::to_string(begin + numel) + ") of " +
              std::string(of) + ", which has " + std::to_string(whole.numel));
  add_entry(unit, kind) = {.state = whole.state, .begin = whole.begin + begin, .numel = numel};
}

void StateStore::adopt(int unit, std::string_view kind, const at::Tensor& values) { add(unit, kind, values); }

bool StateStore::holds(int unit, std::string_view kind) const {
  return entries_.contains({unit, std::string(kind)});
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
  Lease lease;
  lease.use_ = use;
  for (const std::string_view kind : kinds) {
    const auto found = entries_.find({unit, std::string(kind)});
    if (found == entries_.end()) continue;
    const auto& [state, begin, numel] = found->second;
    if (std::find(lease.states_.begin(), lease.states_.end(), state) == lease.states_.end()) {
      borrow(*state, use);
      lease.states_.push_back(state);
    }
    const bool is_whole = numel == state->values.numel();
    lease.lent_.emplace_back(found->first.second,
                             is_whole ? state->values.alias() : state->values.narrow(0, begin, numel));
  }
  return lease;
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

#include "optim/state_store.h"

#include "compute/zeros.h"
#include "zero/error.h"

namespace zero {

struct StateStore::State {
  std::string name;  // "unit 3, exp_avg"
  at::Tensor values;
  Tier tier = Tier::Device;
  bool owned = false;
  int readers = 0;
  bool written = false;
};

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
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i].first == kind) return lent_[i];
  return none;
}

void StateStore::Lease::end() noexcept {
  lent_.clear();
  for (const auto& [kind, state] : states_) {
    if (use_ == Use::Write)
      state->written = false;
    else
      state->readers--;
  }
  states_.clear();
}

StateStore::State& StateStore::add(int unit, std::string_view kind) {
  auto& place = states_[{unit, std::string(kind)}];
  const std::string name = "unit " + std::to_string(unit) + ", " + std::string(kind);
  require(place == nullptr, ErrorKind::Usage, name, "the unit has such a state already");
  place = std::make_unique<State>();
  place->name = name;
  return *place;
}

StateStore::State* StateStore::find(int unit, std::string_view kind) const {
  const auto found = states_.find({unit, std::string(kind)});
  return found == states_.end() ? nullptr : found->second.get();
}

void StateStore::create(int unit, std::string_view kind, int64_t numel, const at::TensorOptions& options,
                        Tier tier) {
  require(tier == Tier::Device, ErrorKind::Unsupported, kind,
          "states can be in device memory only, not in tier " + std::string(to_string(tier)));
  State& state = add(unit, kind);
  state.values = detail::zeros(numel, options);
  state.owned = true;
  state.tier = tier;
}

void StateStore::adopt(int unit, std::string_view kind, const at::Tensor& values) {
  add(unit, kind).values = values;
}

bool StateStore::holds(int unit, std::string_view kind) const { return find(unit, kind) != nullptr; }

StateStore::Lease StateStore::lend(int unit, std::span<const std::string_view> kinds, Use use) {
  Lease lease;
  lease.use_ = use;
  for (const std::string_view kind : kinds) {
    const auto found = states_.find({unit, std::string(kind)});
    if (found == states_.end()) continue;
    State& state = *found->second;
    const bool free = !state.written && (use == Use::Read || state.readers == 0);
    require(free, ErrorKind::Internal, state.name, "it is lent already");
    // The store's own tensor is all that keeps the memory of a state that nobody borrows.
    const bool kept = state.owned && state.readers == 0 && state.values.storage().use_count() > 1;
    require(!kept, ErrorKind::Internal, state.name, "a tensor was kept beyond its lease");
    if (use == Use::Write)
      state.written = true;
    else
      state.readers++;
    lease.states_.emplace_back(found->first.second, &state);
    lease.lent_.push_back(state.values.alias());
  }
  return lease;
}

int64_t StateStore::owned_bytes(Tier tier) const {
  int64_t bytes = 0;
  for (const auto& [key, state] : states_)
    if (state->owned && state->tier == tier) bytes += static_cast<int64_t>(state->values.nbytes());
  return bytes;
}

}  // namespace zero

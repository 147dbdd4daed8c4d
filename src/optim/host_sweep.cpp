#include "optim/host_sweep.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.h"
#include "compute/wait_place.h"
#include "optim/shards.h"
#include "optim/split_master.h"

namespace zero {
namespace {

constexpr int64_t kAlignmentBytes = 64;
constexpr std::array kGradient{kGradientState};

bool is_read(std::string_view kind, const StateStore::Lease& shape) {
  // Beside a whole master the parameter is written only.
  return kind != kParameterState || is_remainder(shape[kMasterState]);
}

}  // namespace

HostSweep::HostSweep(StateStore& states, HostTier& host, std::vector<StatePiece> pieces,
                     std::vector<std::string_view> kinds, bool writes)
    : states_(states), host_(host), kinds_(std::move(kinds)), writes_(writes) {
  for (const StatePiece& piece : pieces)
    pieces_.push_back({.where = piece, .loan = {}, .staged = {}, .arrival = {}});
  host_.link.follow_current();
}

std::shared_ptr<HostSweep::UnitLoan> HostSweep::borrow(int unit) {
  auto loan = std::make_shared<UnitLoan>();
  const auto shape = states_.lend(unit, kinds_, StateStore::Use::Shape);
  const bool is_own_master = keeps_no_copy(shape);
  for (const std::string_view kind : kinds_) {
    if (!shape[kind].defined() || (kind == kParameterState && is_own_master)) continue;
    (shape[kind].is_cpu() ? loan->host_kinds : loan->device_kinds).push_back(kind);
  }
  loan->updated = states_.lend(unit, loan->device_kinds, StateStore::Use::Write);
  // Those on a disk come a piece at a time.
  loan->gradient_is_on_disk = states_.is_on_disk(unit, kGradientState);
  if (!loan->gradient_is_on_disk) loan->gradients = states_.lend(unit, kGradient, StateStore::Use::Read);
  return loan;
}

// Cuts the slot's memory among the kinds of a piece that are on the device, and has them copied there.
void HostSweep::start(size_t index) {
  Piece& piece = pieces_[index];
  if (index > 0 && pieces_[index - 1].where.unit == piece.where.unit) piece.loan = pieces_[index - 1].loan;
  if (!piece.loan) piece.loan = borrow(piece.where.unit);
  const auto shape = states_.lend(piece.where.unit, kinds_, StateStore::Use::Shape);
  const int64_t begin = piece.where.begin, numel = piece.where.end - begin;
  std::vector<std::pair<std::string_view, at::Tensor>> wanted;
  for (const std::string_view kind : piece.loan->device_kinds)
    wanted.emplace_back(kind, piece.loan->updated[kind].narrow(0, begin, numel));
  const at::Tensor& gradients = piece.loan->gradients[kGradientState];
  if (gradients.defined() && !gradients.is_cpu())
    wanted.emplace_back(kGradientState, gradients.narrow(0, begin, numel));
  int64_t bytes = 0;
  for (const auto& [kind, on_device] : wanted)
    bytes += round_up(static_cast<int64_t>(on_device.nbytes()), kAlignmentBytes);
  HostTier::Slot& slot = slot_of(index);
  if (!slot.bytes.defined() || slot.bytes.numel() < bytes) {
    slot.uploads.wait();
    slot.bytes = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  }
  const detail::WaitPlace place("memory of pieces");
  int64_t used = 0;
  for (const auto& [kind, on_device] : wanted) {
    const auto size = static_cast<int64_t>(on_device.nbytes());
    const at::Tensor on_host = slot.bytes.narrow(0, used, size).view(on_device.scalar_type());
    used += round_up(size, kAlignmentBytes);
    if (kind == kGradientState || is_read(kind, shape))
      host_.link.copy_down(on_device, on_host, &slot.uploads);
    else
      slot.uploads.wait();  // the host itself writes there
    piece.staged.push_back({kind, on_device, on_host});
  }
  piece.arrival = host_.link.downs();
}

const RuleMemory& HostSweep::next() {
  // A slot less than there are: the last piece's is being read by its copies.
  const size_t ahead = std::max<size_t>(host_.slots.size() - 1, 1);
  while (started_ < pieces_.size() && started_ < next_ + ahead) start(started_++);
  Piece& piece = pieces_[next_];
  {
    const detail::WaitPlace place("piece from the device");
    piece.arrival.wait();
  }
  memory_.emplace(RuleMemory{
      .lease = states_.lend(piece.where, piece.loan->host_kinds, StateStore::Use::Write,
                            piece.loan->gradient_is_on_disk ? std::span<const std::string_view>(kGradient)
                                                            : std::span<const std::string_view>()),
      .master = {},
      .gradient = {},
      .parameter = {},
      .states = {}});
  collect(piece);
  return *memory_;
}

// In the order of the rule's kinds, from where each is.
void HostSweep::collect(Piece& piece) {
  const auto find = [&](std::string_view kind) {
    for (const Staged& one : piece.staged)
      if (one.kind == kind) return one.on_host;
    return memory_->lease[kind];
  };
  for (const std::string_view kind : kinds_) {
    const at::Tensor found = find(kind);
    if (kind == kMasterState)
      memory_->master = found;
    else if (kind == kParameterState)
      memory_->parameter = found;
    else
      memory_->states.push_back(found);
  }
  memory_->gradient = find(kGradientState);
  if (!memory_->gradient.defined())
    memory_->gradient = piece.loan->gradients[kGradientState].narrow(0, piece.where.begin,
                                                                     piece.where.end - piece.where.begin);
}

void HostSweep::done() {
  Piece& piece = pieces_[next_];
  memory_.reset();
  if (writes_) {
    for (const Staged& one : piece.staged)
      if (one.kind != kGradientState) host_.link.copy_up(one.on_host, one.on_device);
    last_upload_ = slot_of(next_).uploads = host_.link.ups();
  }
  piece.staged.clear();
  piece.loan.reset();
  ++next_;
}

void HostSweep::finish() {
  const detail::WaitPlace place("pieces to the device");
  host_.link.lead_current(last_upload_);
}

}  // namespace zero

// The states of units: lent to many readers or one writer, and to nobody beyond a lease.
#include "optim/state_store.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "tiers/disk_states.h"

namespace zero {
namespace {

using Use = StateStore::Use;
constexpr std::string_view kMoment = "exp_avg";

TEST(StateStore, LendsWhatAUnitHas) {
  StateStore store;
  store.create(3, kMoment, 5, at::kFloat);
  const at::Tensor slab = at::ones({8});
  store.adopt(3, kParameterState, slab.narrow(0, 2, 5));
  EXPECT_TRUE(store.holds(3, kMoment));
  EXPECT_FALSE(store.holds(2, kMoment));
  {
    const auto lease = store.lend(3, {kParameterState, kMoment, kMasterState}, Use::Write);
    EXPECT_FALSE(lease[kMasterState].defined());
    EXPECT_EQ(lease[kMoment].count_nonzero().item<int64_t>(), 0);
    lease[kMoment].fill_(2);
    lease[kParameterState].fill_(3);
  }
  EXPECT_EQ(slab.sum().item<float>(), 3 + 5 * 3);
  EXPECT_EQ(store.lend(3, {kMoment}, Use::Read)[kMoment].sum().item<float>(), 10);
  EXPECT_EQ(store.owned_bytes(), 20);
  EXPECT_ERROR(store.create(3, kMoment, 5, at::kFloat), Usage, "unit 3, exp_avg");
}

TEST(StateStore, LendsWhatIsOnDiskWholeAndInPieces) {
  const testing::TemporaryDirectory directory;
  StateStore store;
  EXPECT_ERROR(store.create(0, kMoment, 5, at::kFloat, Tier::Disk), Usage, "no disk was given");
  EXPECT_FALSE(store.holds(0, kMoment));
  store.keep_on_disk(
      std::make_unique<tiers::DiskStates>(std::make_unique<tiers::DiskFile>(tiers::DiskFileOptions{
                                              .directory = directory.path(), .bytes = 1 << 20}),
                                          tiers::DiskStatesOptions{.piece_numel = 1024, .buffers = 2}));
  constexpr int64_t kNumel = 2500;
  store.create(0, kMoment, kNumel, at::kFloat, Tier::Disk);
  store.create(0, kMasterState, kNumel, at::kFloat);
  EXPECT_EQ(store.owned_bytes(Tier::Disk), kNumel * 4);
  EXPECT_EQ(store.owned_bytes(), kNumel * 4);
  {
    const auto lease = store.lend(0, {kMoment}, Use::Write);
    EXPECT_EQ(lease[kMoment].abs().max().item<float>(), 0);
    at::Tensor(lease[kMoment]).copy_(at::arange(kNumel));
    EXPECT_ERROR(store.lend(0, {kMoment}, Use::Read), Internal, "it is lent already");
  }
  const std::vector<std::string_view> kinds{kMasterState, kMoment, kParameterState};
  const std::vector<StatePiece> pieces = store.pieces_of(0, kinds);
  ASSERT_EQ(pieces.size(), 3u);
  store.announce(pieces, kinds);
  for (const StatePiece& piece : pieces) {
    const auto lease = store.lend(piece, kinds, Use::Write);
    EXPECT_TRUE(at::equal(lease[kMoment], at::arange(piece.begin, piece.end).to(at::kFloat)));
    EXPECT_EQ(lease[kMasterState].numel(), piece.end - piece.begin);
    at::Tensor(lease[kMoment]).add_(1);
  }
  store.flush();
  EXPECT_TRUE(
      at::equal(store.lend(0, {kMoment}, Use::Read)[kMoment], at::arange(1, kNumel + 1).to(at::kFloat)));
  EXPECT_EQ(store.lend(0, {kMoment}, Use::Shape)[kMoment].numel(), kNumel);
  at::Tensor kept = store.lend(0, {kMoment}, Use::Read)[kMoment];
  EXPECT_ERROR(store.flush(), Internal, "a tensor was kept beyond its lease");
}

TEST(StateStore, ManyMayReadAndOneMayWrite) {
  StateStore store;
  store.create(0, kMoment, 5, at::kFloat);
  store.create(0, kMasterState, 5, at::kFloat);
  auto first = store.lend(0, {kMoment}, Use::Read);
  auto second = store.lend(0, {kMoment}, Use::Read);
  EXPECT_ERROR(store.lend(0, {kMasterState, kMoment}, Use::Write), Internal, "unit 0, exp_avg: it is lent");
  EXPECT_NO_THROW(store.lend(0, {kMasterState}, Use::Write)) << "the refused one has given it back";
  first.end();
  second = StateStore::Lease();
  auto writer = store.lend(0, {kMoment}, Use::Write);
  EXPECT_ERROR(store.lend(0, {kMoment}, Use::Read), Internal, "it is lent");
  const auto moved = std::move(writer);
  EXPECT_ERROR(store.lend(0, {kMoment}, Use::Read), Internal, "it is lent");
}

TEST(StateStore, NoticesWhatIsKeptBeyondALease) {
  StateStore store;
  store.create(0, kMoment, 5, at::kFloat);
  at::Tensor kept = store.lend(0, {kMoment}, Use::Read)[kMoment].narrow(0, 1, 2);
  EXPECT_ERROR(store.lend(0, {kMoment}, Use::Read), Internal, "a tensor was kept beyond its lease");
  kept.reset();
  EXPECT_NO_THROW(store.lend(0, {kMoment}, Use::Read));
}

TEST(StateStore, LendsAStateAndItsViewsAsOne) {
  StateStore store;
  store.create(0, kParameterState, 6, at::kFloat);
  store.create_view(0, kMasterState, kParameterState, 2, 3);
  {
    const auto both = store.lend(0, {kMasterState, kParameterState}, Use::Write);
    both[kMasterState].fill_(2);
    EXPECT_EQ(both[kParameterState].sum().item<float>(), 6);
    EXPECT_ERROR(store.lend(0, {kMasterState}, Use::Read), Internal, "unit 0, parameter: it is lent");
  }
  EXPECT_EQ(store.lend(0, {kMasterState}, Use::Write)[kMasterState].numel(), 3);
  EXPECT_EQ(store.owned_bytes(), 24);
  EXPECT_EQ(store.owned_bytes(kMasterState), 0);
  EXPECT_ERROR(store.create_view(0, kMoment, kGradientState, 0, 1), Usage, "no state gradient");
  EXPECT_ERROR(store.create_view(0, kMoment, kParameterState, 4, 3), Usage, "[4, 7) of parameter");
}

TEST(StateStore, PassingStatesKeepTheirValuesUntilTheyAreDiscarded) {
  StateStore store;
  const std::vector<int> units{1, 4};
  store.create_passing(kGradientState, units, {5, 0}, at::kFloat);
  EXPECT_EQ(store.owned_bytes(kGradientState), 20);
  for (int round = 0; round < 2; ++round) {
    store.lend(1, {kGradientState}, Use::Write)[kGradientState].fill_(3);
    const auto lease = store.lend(1, {kGradientState}, Use::Read);
    EXPECT_EQ(lease[kGradientState].sum().item<float>(), 15);
    EXPECT_ERROR(store.discard(kGradientState), Internal, "unit 1, gradient: it is lent");
    EXPECT_NO_THROW(store.discard(kMoment)) << "there is nothing of that kind";
    store.lend(4, {kGradientState}, Use::Write);
  }
  store.discard(kGradientState);
  EXPECT_ERROR(store.create_passing(kGradientState, units, {5, 0}, at::kFloat), Usage, "such states already");
}

}  // namespace
}  // namespace zero

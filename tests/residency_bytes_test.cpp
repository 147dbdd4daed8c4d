// What the residency policy fetches in the steady state, in bytes, against the least that any rule could:
// units differ in size, so Belady's rule alone is not the optimum.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "plan/residency_policy.h"

namespace {
using zero::ResidencyPolicy;
using Set = uint32_t;  // of units, a bit each

/// Bytes of units, and the order in which a pass touches them.
struct Recorded {
  std::string name;
  std::vector<int64_t> bytes;
  std::vector<int> order;
};

int64_t bytes_of(const Recorded& recorded, Set units) {
  int64_t sum = 0;
  for (size_t i = 0; i < recorded.bytes.size(); ++i) sum += (units >> i & 1) != 0 ? recorded.bytes[i] : 0;
  return sum;
}

/// The sets that may stay beside `room` bytes more: those to which none of the others could be added.
template <class Use>
void for_each_kept(const Recorded& recorded, Set resident, int64_t room, Use use) {
  for (Set kept = resident;; kept = (kept - 1) & resident) {
    const int64_t bytes = bytes_of(recorded, kept);
    bool is_largest = bytes <= room;
    for (size_t i = 0; i < recorded.bytes.size() && is_largest; ++i)
      is_largest = ((resident & ~kept) >> i & 1) == 0 || bytes + recorded.bytes[i] > room;
    if (is_largest) use(kept);
    if (kept == 0) return;
  }
}

/// The least bytes that a pass can fetch which begins with nothing: all ways, by what is resident after each
/// touch. What is not touched again is let go.
int64_t least_bytes(const Recorded& recorded, int64_t budget) {
  std::map<Set, int64_t> fetched{{0, 0}};
  for (size_t at = 0; at < recorded.order.size(); ++at) {
    const Set unit = Set{1} << recorded.order[at];
    Set needed = unit;
    for (size_t i = at + 1; i < recorded.order.size(); ++i) needed |= Set{1} << recorded.order[i];
    std::map<Set, int64_t> next;
    const auto reach = [&](Set resident, int64_t bytes) {
      const auto [place, is_new] = next.try_emplace(resident & needed, bytes);
      if (!is_new) place->second = std::min(place->second, bytes);
    };
    const int64_t more = recorded.bytes[static_cast<size_t>(recorded.order[at])];
    for (const auto& [resident, bytes] : fetched) {
      if ((resident & unit) != 0) {
        reach(resident, bytes);
        continue;
      }
      for_each_kept(recorded, resident, budget - more,
                    [&, so_far = bytes](Set kept) { reach(kept | unit, so_far + more); });
    }
    fetched = std::move(next);
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [resident, bytes] : fetched) least = std::min(least, bytes);
  return least;
}

int64_t policy_bytes(const Recorded& recorded, int64_t budget, int64_t prefetch) {
  ResidencyPolicy policy({.unit_bytes = recorded.bytes, .budget_bytes = budget, .prefetch_bytes = prefetch});
  int64_t bytes = 0;
  const auto count = [&](const ResidencyPolicy::Actions& actions) {
    for (const int unit : actions.fetch) bytes += recorded.bytes[static_cast<size_t>(unit)];
  };
  for (int pass = 0; pass < 3; ++pass) {
    bytes = 0;
    count(policy.begin_pass(ResidencyPolicy::Pass::Train));
    for (const int unit : recorded.order) count(policy.touch({&unit, 1}));
    count(policy.end_pass());
    policy.forget_values();
  }
  return bytes;
}

/// A GPT-2 in bf16: embeddings of tokens and positions, blocks, the last norm, and an output layer that is
/// the first embedding or a matrix of its own. Units are touched forward, then backward in reverse, for every
/// micro-batch.
Recorded gpt2(int layers, int64_t width, bool is_tied, int micro_batches) {
  Recorded recorded{.name = std::to_string(layers) + " layers of " + std::to_string(width) +
                            (is_tied ? ", tied, " : ", ") + std::to_string(micro_batches) + " micro-batches",
                    .bytes = {},
                    .order = {}};
  recorded.bytes = {50257 * width * 2, 1024 * width * 2};
  std::vector<int> forward{0, 1};
  for (int layer = 0; layer < layers; ++layer) {
    forward.push_back(static_cast<int>(recorded.bytes.size()));
    recorded.bytes.push_back((12 * width + 13) * width * 2);
  }
  forward.push_back(static_cast<int>(recorded.bytes.size()));
  recorded.bytes.push_back(4 * width);
  forward.push_back(is_tied ? 0 : static_cast<int>(recorded.bytes.size()));
  if (!is_tied) recorded.bytes.push_back(recorded.bytes.front());
  for (int micro = 0; micro < micro_batches; ++micro) {
    recorded.order.insert(recorded.order.end(), forward.begin(), forward.end());
    recorded.order.insert(recorded.order.end(), forward.rbegin(), forward.rend());
  }
  return recorded;
}

void expect_near_least(const Recorded& recorded, int64_t budget) {
  const int64_t least = least_bytes(recorded, budget);
  for (const int64_t prefetch : {int64_t{0}, std::numeric_limits<int64_t>::max()}) {
    const int64_t bytes = policy_bytes(recorded, budget, prefetch);
    EXPECT_GE(bytes, least) << "the bound is none";
    EXPECT_LE(static_cast<double>(bytes), 1.05 * static_cast<double>(least))
        << recorded.name << ", budget " << budget << ", prefetch " << prefetch;
  }
}

// What make_plan() takes where nothing is said.
int64_t usual_budget(std::vector<int64_t> bytes) {
  std::sort(bytes.rbegin(), bytes.rend());
  return bytes[0] + bytes[1] + bytes[2];
}

TEST(ResidencyBytes, AreAlmostTheLeastWithTheUsualBudget) {
  for (const int64_t width : {768, 1600})
    for (const bool is_tied : {true, false})
      for (const int micro_batches : {1, 2, 4}) {
        const Recorded recorded = gpt2(12, width, is_tied, micro_batches);
        expect_near_least(recorded, usual_budget(recorded.bytes));
      }
}

TEST(ResidencyBytes, AreAlmostTheLeastWithAnyBudget) {
  for (const int64_t width : {768, 1600})
    for (const bool is_tied : {true, false})
      for (const int micro_batches : {1, 3}) {
        const Recorded recorded = gpt2(6, width, is_tied, micro_batches);
        const int64_t all = std::accumulate(recorded.bytes.begin(), recorded.bytes.end(), int64_t{0});
        for (int tenths = 1; tenths <= 10; ++tenths)
          expect_near_least(recorded, std::max(recorded.bytes.front(), all / 10 * tenths));
      }
}

}  // namespace

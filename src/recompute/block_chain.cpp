#include "zero/block_chain.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "mesh/agree.h"
#include "recompute/chain_plan.h"
#include "recompute/region.h"
#include "recompute/stopwatch.h"
#include "seam/tensor_holder.h"
#include "zero/error.h"
#include "zero/mesh.h"
#include "zero/recompute.h"

namespace zero {

using Clock = std::chrono::steady_clock;

namespace {
/// Neighbouring blocks that run at once: the first, and the one behind the last.
using Range = std::pair<int64_t, int64_t>;
}  // namespace

/// The blocks as they ran last. Backward may tell from another thread.
struct BlockChain::Measured {
  struct Figures {
    double forward_s = 0, backward_s = 0, input_bytes = 0, kept_bytes = 0;
  };

  void tell(int64_t block, double forward_s, int64_t input_bytes) {
    const std::lock_guard lock(mutex);
    if (std::ssize(blocks) <= block) blocks.resize(block + 1);
    blocks[block].forward_s = forward_s;
    blocks[block].input_bytes = std::max(blocks[block].input_bytes, static_cast<double>(input_bytes));
  }
  /// A block begins to be computed again: the backward of the one behind it is over.
  void begin_again(int64_t block) {
    const std::lock_guard lock(mutex);
    if (again != block + 1) return;
    blocks[again].backward_s = std::chrono::duration<double>(Clock::now() - again_at).count();
  }
  void ran(int64_t first, int64_t last) {
    const std::lock_guard lock(mutex);
    ranges.emplace(first, last);
  }
  bool has_no_blocks() const {
    return !ranges.empty() && std::all_of(ranges.begin(), ranges.end(),
                                          [](const Range& range) { return range.first == range.second; });
  }
  void tell_kept(int64_t block, int64_t bytes) {
    const std::lock_guard lock(mutex);
    blocks[block].kept_bytes = std::max(blocks[block].kept_bytes, static_cast<double>(bytes));
    again = block;
    again_at = Clock::now();
  }

  std::mutex mutex;
  std::vector<Figures> blocks;
  std::set<Range> ranges;  // that ran: of a pipeline's rank, its stages'; one without blocks has run too
  int64_t again = -1;      // computed again last; none before a backward
  Clock::time_point again_at;
};

/// A plan of each range.
struct BlockChain::Choice {
  std::map<Range, std::vector<detail::ChainPart>> parts;
};

struct BlockChain::Stores {
  std::unique_ptr<const ActivationStore> host, disk;
  const ActivationStore* of(Tier tier) const {
    return tier == Tier::Host ? host.get() : tier == Tier::Disk ? disk.get() : nullptr;
  }
};

namespace {

using Block = BlockChain::Block;
using Parts = std::vector<detail::ChainPart>;
using StoreScope = std::optional<ActivationStore::Scope>;

constexpr std::array kOffloadTiers{Tier::Host, Tier::Disk};  // as plans number them

std::string name_of(int64_t first, int64_t last) {
  return first == last ? "block " + std::to_string(first)
                       : "blocks " + std::to_string(first) + " to " + std::to_string(last);
}

RecomputeOptions options_for(int64_t first, int64_t last, const RecomputePolicy& policy) {
  return {.name = name_of(first, last),
          .preserve_random_state = true,
          .inputs_on_host = policy.inputs_on_host,
          .partition_inputs = policy.partition_inputs};
}

at::Tensor run_parts(at::Tensor x, const Parts& parts, const Block& block, const RecomputePolicy& policy,
                     const BlockChain::Stores* stores) {
  for (const detail::ChainPart& part : parts) {
    if (part.keeps) {
      StoreScope scope;
      if (part.tier >= 0) scope.emplace(*stores->of(kOffloadTiers[part.tier]));
      x = block(x, part.first);
      continue;
    }
    const auto run = [=](const at::Tensor& in) { return run_parts(in, part.inside, block, policy, nullptr); };
    x = recompute(run, x, options_for(part.first, part.last, policy));
  }
  return x;
}

at::Tensor run_measured(const at::Tensor& x, int64_t index, const Block& block, const RecomputePolicy& policy,
                        const std::shared_ptr<BlockChain::Measured>& measured) {
  const auto run = [=](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{block(in[0], index)};
  };
  const std::vector<at::Tensor> inputs{x};
  const at::Device device = x.device();
  const auto region = std::make_shared<detail::Region>(run, inputs, options_for(index, index, policy));
  region->observe(
      [=] {
        detail::wait_for(device);
        measured->begin_again(index);
      },
      [=](int64_t bytes) {
        detail::wait_for(device);
        measured->tell_kept(index, bytes);
      });
  at::Tensor y;
  const double forward_s = detail::seconds_of(device, [&] { y = region->run(inputs)[0]; });
  measured->tell(index, forward_s, static_cast<int64_t>(detail::held_by(x).nbytes()));
  return y;
}

constexpr int kColumns = 4;

/// Throws Config unless ranks along "dp" and "tp", which have the same blocks, give the same text.
/// Collective.
void require_same_blocks(const Mesh& mesh, const std::string& text) {
  for (const Axis& axis : mesh.axes()) {
    if (axis.name != "dp" && axis.name != "tp") continue;
    const Group along = mesh.group(axis.name);
    for (const std::string& other : detail::gather_text(mesh, along, text, "measured blocks"))
      require(other == text, ErrorKind::Config, "recompute",
              "ranks along \"" + axis.name + "\" have measured " + text + " and " + other);
  }
}

/// The largest of all ranks along "dp" and "tp".
at::Tensor most_of(const Mesh& mesh, const at::Tensor& own) {
  if (own.numel() == 0) return own;
  const at::Tensor figures = own.to(mesh.device()).flatten();
  for (const Axis& axis : mesh.axes())
    if (axis.name == "dp" || axis.name == "tp")
      mesh.group(axis.name).all_reduce(figures, Group::Reduce::Max, "measured blocks").wait();
  return figures.cpu().view_as(own);
}

/// [blocks, kColumns]
at::Tensor figures_of(const std::vector<BlockChain::Measured::Figures>& blocks) {
  at::Tensor figures = at::zeros({std::ssize(blocks), kColumns}, at::kDouble);
  auto rows = figures.accessor<double, 2>();
  for (int64_t i = 0; i < std::ssize(blocks); ++i) {
    rows[i][0] = blocks[i].forward_s;
    rows[i][1] = blocks[i].backward_s;
    rows[i][2] = blocks[i].input_bytes;
    rows[i][3] = blocks[i].kept_bytes;
  }
  return figures;
}

/// Times in microseconds. Where the first block's backward ends nobody sees: it is taken to be to its forward
/// as the others' are; a block alone, twice as long.
std::vector<detail::ChainUnit> units_of(const at::Tensor& figures) {
  std::vector<detail::ChainUnit> units;
  const auto rows = figures.accessor<double, 2>();
  double forward_s = 0, backward_s = 0;
  for (int64_t i = 1; i < figures.size(0); ++i) {
    forward_s += rows[i][0];
    backward_s += rows[i][1];
  }
  const double ratio = forward_s > 0 ? backward_s / forward_s : 2;
  for (int64_t i = 0; i < figures.size(0); ++i) {
    const double backward = i > 0 ? rows[i][1] : rows[i][0] * ratio;
    units.push_back({.forward_time = std::max<int64_t>(1, std::llround(rows[i][0] * 1e6)),
                     .backward_time = std::llround(backward * 1e6),
                     .input_bytes = static_cast<int64_t>(rows[i][2]),
                     .kept_bytes = static_cast<int64_t>(rows[i][3])});
  }
  return units;
}

/// By number of tier. What cannot be used is never worth its time. Collective.
std::vector<detail::ChainTier> tiers_of(const Mesh& mesh, const BlockChain::Stores* stores) {
  if (stores == nullptr) return {};
  constexpr double kNever = 1e3;  // seconds a byte
  at::Tensor rates = at::full({std::ssize(kOffloadTiers), 2}, kNever, at::kDouble);
  detail::together(mesh, "activation_checkpointing", [&] {
    for (int64_t i = 0; i < std::ssize(kOffloadTiers); ++i) {
      const ActivationStore* const store = stores->of(kOffloadTiers[i]);
      if (store == nullptr || (kOffloadTiers[i] == Tier::Host && mesh.device().is_cpu())) continue;
      const ActivationStore::Rates rate = store->measure(mesh.device());
      rates[i][0] = rate.out_s;
      rates[i][1] = rate.back_s;
    }
  });
  rates = most_of(mesh, rates);
  std::vector<detail::ChainTier> tiers;
  for (int64_t i = 0; i < rates.size(0); ++i)
    tiers.push_back(
        {.out_time = rates[i][0].item<double>() * 1e6, .back_time = rates[i][1].item<double>() * 1e6});
  return tiers;
}

/// With the memory that a disk's transfers pass through, or without both.
std::optional<detail::ChainPlan> best_plan(const std::vector<detail::ChainUnit>& units,
                                           const RecomputePolicy& policy,
                                           const std::vector<detail::ChainTier>& tiers, bool has_disk) {
  const auto plain = detail::plan_chain(units, policy.memory_bytes);
  if (tiers.empty()) return plain;
  const auto with =
      detail::plan_chain(units, policy.memory_bytes - (has_disk ? policy.buffer_bytes : 0), tiers);
  return with && (!plain || with->time < plain->time) ? with : plain;
}

std::string mebibytes(int64_t bytes) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

template <class Is>
std::string names_of(const Parts& parts, Is is) {
  std::string names;
  for (const detail::ChainPart& part : parts) {
    if (!is(part)) continue;
    names += (names.empty() ? "" : ", ") + std::to_string(part.first);
    if (part.last > part.first) names += "-" + std::to_string(part.last);
  }
  return names;
}

std::string rate_text(const detail::ChainTier& tier) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << 1e-3 / tier.out_time << " GB/s there, " << 1e-3 / tier.back_time << " back";
  return text.str();
}

std::string paragraph(const std::vector<detail::ChainUnit>& units, const detail::ChainPlan& plan,
                      int64_t budget_bytes, const std::vector<detail::ChainTier>& tiers) {
  int64_t forward = 0, both = 0;
  for (const detail::ChainUnit& unit : units) {
    forward += unit.forward_time;
    both += unit.forward_time + unit.backward_time;
  }
  const auto kept = std::count_if(plan.parts.begin(), plan.parts.end(),
                                  [](const detail::ChainPart& part) { return part.keeps && part.tier < 0; });
  std::ostringstream text;
  text << "recomputation: " << kept << " of " << units.size() << " blocks keep their activations";
  const std::string again = names_of(plan.parts, [](const auto& part) { return !part.keeps; });
  if (!again.empty()) text << ", computed again: " << again;
  for (int tier = 0; tier < std::ssize(tiers); ++tier) {
    const std::string there = names_of(plan.parts, [=](const auto& part) { return part.tier == tier; });
    if (!there.empty())
      text << ", on " << to_string(kOffloadTiers[tier]) << " (" << rate_text(tiers[tier]) << "): " << there;
  }
  text << "; all would keep " << mebibytes(detail::most_bytes(units)) << " of a micro-batch, and "
       << mebibytes(budget_bytes) << " are allowed";
  text.precision(1);
  text << std::fixed << "; that takes "
       << 100.0 * static_cast<double>(plan.time - both) / static_cast<double>(forward)
       << "% of the blocks' forward more, as little as any choice that fits";
  return text.str();
}

/// Parts of blocks that are counted from `first` on.
void move_by(Parts& parts, int first) {
  for (detail::ChainPart& part : parts) {
    part.first += first;
    part.last += first;
    move_by(part.inside, first);
  }
}

std::shared_ptr<const BlockChain::Stores> stores_of(const RecomputePolicy& policy) {
  const bool is_auto = policy.tier == ActivationTier::Auto;
  const bool host = is_auto || policy.tier == ActivationTier::Host,
             disk = policy.tier == ActivationTier::Disk || (is_auto && !policy.path.empty());
  if (!host && !disk) return nullptr;
  const auto store = [&](Tier tier) {
    return std::make_unique<const ActivationStore>(
        ActivationStoreOptions{.tier = tier,
                               .path = policy.path,
                               .buffer_bytes = policy.buffer_bytes,
                               .key = "activation_checkpointing.offload_path"});
  };
  auto stores = std::make_shared<BlockChain::Stores>();
  if (host) stores->host = store(Tier::Host);
  if (disk) stores->disk = store(Tier::Disk);
  return stores;
}

}  // namespace

BlockChain::BlockChain(const RecomputePolicy& policy) : policy_(policy) {
  const bool is_auto = policy.every == kRecomputeAuto;
  require(policy.every >= kRecomputeAuto, ErrorKind::Config, "recompute",
          "expected every so many-th block or auto, got " + std::to_string(policy.every));
  require(is_auto || policy.tier != ActivationTier::Auto, ErrorKind::Config,
          "activation_checkpointing.offload", "auto chooses where recomputation is auto too",
          "name the host or a disk, or recompute auto");
  stores_ = stores_of(policy);
  if (!is_auto) return;
  require(policy.memory_bytes >= 0, ErrorKind::Config, "recompute",
          "auto needs the bytes that the blocks may keep", "give them, or recompute all or every k-th block");
  measured_ = std::make_shared<Measured>();
}

at::Tensor BlockChain::run(at::Tensor x, int64_t first, int64_t last, const Block& block) {
  const bool has_gradient = c10::GradMode::is_enabled();
  if (has_gradient && choice_)
    if (const auto chosen = choice_->parts.find({first, last}); chosen != choice_->parts.end())
      return run_parts(x, chosen->second, block, policy_, stores_.get());
  if (has_gradient && measured_ && !choice_) measured_->ran(first, last);
  StoreScope scope;
  if (has_gradient && stores_ && !measured_)
    scope.emplace(*stores_->of(policy_.tier == ActivationTier::Host ? Tier::Host : Tier::Disk));
  for (int64_t i = first; i < last; ++i) {
    if (has_gradient && measured_ && !choice_)
      x = run_measured(x, i, block, policy_, measured_);
    else if (has_gradient && (measured_ || policy_.recomputes(i)))
      x = recompute([=](const at::Tensor& in) { return block(in, i); }, x, options_for(i, i, policy_));
    else
      x = block(x, i);
  }
  return x;
}

bool BlockChain::must_choose() const {
  if (!measured_ || choice_) return false;
  const std::lock_guard lock(measured_->mutex);
  return measured_->again >= 0 || measured_->has_no_blocks();
}

// Ranges share the memory by what they would keep.
std::string BlockChain::choose(const Mesh& mesh) {
  require(must_choose(), ErrorKind::Usage, "recompute", "there is nothing to choose from",
          "call it once, with an automatic policy, after the first backward");
  require_same_blocks(mesh, std::to_string(measured_->blocks.size()) + " blocks");
  const at::Tensor figures = most_of(mesh, figures_of(measured_->blocks));
  const std::vector<detail::ChainTier> tiers = tiers_of(mesh, stores_.get());
  std::map<Range, std::vector<detail::ChainUnit>> units;
  double all_bytes = 0;
  for (const Range& range : measured_->ranges) {
    if (range.first == range.second) continue;
    units[range] = units_of(figures.narrow(0, range.first, range.second - range.first));
    all_bytes += static_cast<double>(detail::most_bytes(units[range]));
  }
  Choice choice;
  std::string text;
  detail::together(mesh, "recompute", [&] {
    for (const auto& [range, those] : units) {
      RecomputePolicy own = policy_;
      const double share = all_bytes > 0 ? static_cast<double>(detail::most_bytes(those)) / all_bytes : 1;
      if (units.size() > 1)
        own.memory_bytes = static_cast<int64_t>(static_cast<double>(own.memory_bytes) * share);
      auto plan = best_plan(those, own, tiers, stores_ && stores_->disk);
      if (!plan)
        fail(ErrorKind::Config, "recompute",
             "the blocks need " + mebibytes(detail::least_budget_bytes(those)) +
                 " at least, whatever is computed again, and may keep " + mebibytes(own.memory_bytes),
             "allow them more, or make the micro-batch smaller");
      move_by(plan->parts, static_cast<int>(range.first));
      text += (text.empty() ? "" : "; ") + paragraph(those, *plan, own.memory_bytes, tiers);
      choice.parts[range] = std::move(plan->parts);
    }
  });
  choice_ = std::make_shared<const Choice>(std::move(choice));
  return text.empty() ? "recomputation: there are no blocks here" : text;
}

ActivationStoreStats BlockChain::stored(Tier tier) const {
  const ActivationStore* const store = stores_ ? stores_->of(tier) : nullptr;
  return store == nullptr ? ActivationStoreStats{} : store->stats();
}

}  // namespace zero

#include "zero/block_chain.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "mesh/agree.h"
#include "recompute/chain_plan.h"
#include "recompute/region.h"
#include "zero/error.h"
#include "zero/mesh.h"
#include "zero/recompute.h"

namespace zero {

/// The blocks as they ran last. Backward may tell from another thread.
struct BlockChain::Measured {
  struct Figures {
    double forward_s = 0, input_bytes = 0, kept_bytes = 0;
  };

  void tell(int64_t block, const Figures& figures) {
    const std::lock_guard lock(mutex);
    if (std::ssize(blocks) <= block) blocks.resize(block + 1);
    blocks[block] = {.forward_s = figures.forward_s,
                     .input_bytes = std::max(blocks[block].input_bytes, figures.input_bytes),
                     .kept_bytes = blocks[block].kept_bytes};
  }
  void tell_kept(int64_t block, int64_t bytes) {
    const std::lock_guard lock(mutex);
    blocks[block].kept_bytes = std::max(blocks[block].kept_bytes, static_cast<double>(bytes));
    went_back = true;
  }

  std::mutex mutex;
  std::vector<Figures> blocks;
  bool went_back = false;
};

/// A plan of the blocks from 0 on.
struct BlockChain::Choice {
  std::vector<detail::ChainPart> parts;
  int64_t blocks;
};

namespace {

using Block = BlockChain::Block;
using Parts = std::vector<detail::ChainPart>;

std::string name_of(int64_t first, int64_t last) {
  return first == last ? "block " + std::to_string(first)
                       : "blocks " + std::to_string(first) + " to " + std::to_string(last);
}

RecomputeOptions options_for(int64_t first, int64_t last, bool inputs_on_host) {
  return {.name = name_of(first, last), .preserve_random_state = true, .inputs_on_host = inputs_on_host};
}

at::Tensor run_parts(at::Tensor x, const Parts& parts, const Block& block, bool inputs_on_host) {
  for (const detail::ChainPart& part : parts) {
    if (part.keeps) {
      x = block(x, part.first);
      continue;
    }
    const auto run = [=](const at::Tensor& in) { return run_parts(in, part.inside, block, inputs_on_host); };
    x = recompute(run, x, options_for(part.first, part.last, inputs_on_host));
  }
  return x;
}

void wait_for(const at::Tensor& x) {
  if (!x.is_cpu()) c10::impl::VirtualGuardImpl(x.device().type()).synchronizeDevice(x.device().index());
}

at::Tensor run_measured(const at::Tensor& x, int64_t index, const Block& block, bool inputs_on_host,
                        const std::shared_ptr<BlockChain::Measured>& measured) {
  using Clock = std::chrono::steady_clock;
  const auto run = [=](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{block(in[0], index)};
  };
  const std::vector<at::Tensor> inputs{x};
  const auto region =
      std::make_shared<detail::Region>(run, inputs, options_for(index, index, inputs_on_host));
  region->observe([=](int64_t bytes) { measured->tell_kept(index, bytes); });
  wait_for(x);
  const auto begin = Clock::now();
  const at::Tensor y = region->run(inputs)[0];
  wait_for(y);
  measured->tell(index, {.forward_s = std::chrono::duration<double>(Clock::now() - begin).count(),
                         .input_bytes = static_cast<double>(x.nbytes())});
  return y;
}

/// The most that any rank along "dp" and "tp" has measured, [blocks, 3].
at::Tensor most_of(const Mesh& mesh, const std::vector<BlockChain::Measured::Figures>& blocks) {
  detail::require_same(mesh, std::to_string(blocks.size()) + " blocks", "measured blocks");
  at::Tensor figures = at::zeros({std::ssize(blocks), 3}, at::kDouble);
  for (int64_t i = 0; i < std::ssize(blocks); ++i) {
    figures[i][0] = blocks[i].forward_s;
    figures[i][1] = blocks[i].input_bytes;
    figures[i][2] = blocks[i].kept_bytes;
  }
  figures = figures.to(mesh.device()).flatten();
  for (const Axis& axis : mesh.axes())
    if (axis.name == "dp" || axis.name == "tp")
      mesh.group(axis.name).all_reduce(figures, Group::Reduce::Max, "measured blocks").wait();
  return figures.cpu().view({-1, 3});
}

std::vector<detail::ChainUnit> units_of(const at::Tensor& figures) {
  std::vector<detail::ChainUnit> units;
  const auto rows = figures.accessor<double, 2>();
  for (int64_t i = 0; i < figures.size(0); ++i)
    units.push_back({.forward_time = std::max<int64_t>(1, std::llround(rows[i][0] * 1e6)),
                     .backward_time = 0,
                     .input_bytes = static_cast<int64_t>(rows[i][1]),
                     .kept_bytes = static_cast<int64_t>(rows[i][2])});
  return units;
}

std::string mebibytes(int64_t bytes) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

std::string names_of(const Parts& parts) {
  std::string names;
  for (const detail::ChainPart& part : parts) {
    if (part.keeps) continue;
    names += (names.empty() ? "" : ", ") + std::to_string(part.first);
    if (part.last > part.first) names += "-" + std::to_string(part.last);
  }
  return names;
}

std::string paragraph(const std::vector<detail::ChainUnit>& units, const detail::ChainPlan& plan,
                      int64_t budget_bytes) {
  int64_t forward = 0;
  for (const detail::ChainUnit& unit : units) forward += unit.forward_time;
  const auto kept = std::count_if(plan.parts.begin(), plan.parts.end(),
                                  [](const detail::ChainPart& part) { return part.keeps; });
  std::ostringstream text;
  text << "recomputation: " << kept << " of " << units.size() << " blocks keep their activations";
  if (kept < std::ssize(units)) text << ", computed again: " << names_of(plan.parts);
  text << "; all would keep " << mebibytes(detail::most_bytes(units)) << " of a micro-batch, and "
       << mebibytes(budget_bytes) << " are allowed";
  text.precision(1);
  text << std::fixed << "; that computes "
       << 100.0 * static_cast<double>(plan.time - forward) / static_cast<double>(forward)
       << "% of the blocks' forward again, as little as any choice that fits";
  return text.str();
}

}  // namespace

BlockChain::BlockChain(const RecomputePolicy& policy) : policy_(policy) {
  require(policy.every >= kRecomputeAuto, ErrorKind::Config, "recompute",
          "expected every so many-th block or auto, got " + std::to_string(policy.every));
  if (policy.every != kRecomputeAuto) return;
  require(policy.memory_bytes >= 0, ErrorKind::Config, "recompute",
          "auto needs the bytes that the blocks may keep", "give them, or recompute all or every k-th block");
  measured_ = std::make_shared<Measured>();
}

at::Tensor BlockChain::run(at::Tensor x, int64_t first, int64_t last, const Block& block) {
  const bool keeps_all = !c10::GradMode::is_enabled() || policy_.every == kRecomputeNone;
  if (!keeps_all && choice_ && first == 0 && last == choice_->blocks)
    return run_parts(x, choice_->parts, block, policy_.inputs_on_host);
  for (int64_t i = first; i < last; ++i) {
    if (!keeps_all && measured_ && !choice_)
      x = run_measured(x, i, block, policy_.inputs_on_host, measured_);
    else if (!keeps_all && (measured_ || policy_.recomputes(i)))
      x = recompute([=](const at::Tensor& in) { return block(in, i); }, x,
                    options_for(i, i, policy_.inputs_on_host));
    else
      x = block(x, i);
  }
  return x;
}

bool BlockChain::must_choose() const {
  if (!measured_ || choice_) return false;
  const std::lock_guard lock(measured_->mutex);
  return measured_->went_back;
}

std::string BlockChain::choose(const Mesh& mesh) {
  require(must_choose(), ErrorKind::Usage, "recompute", "there is nothing to choose from",
          "call it once, with an automatic policy, after the first backward");
  const std::vector<detail::ChainUnit> units = units_of(most_of(mesh, measured_->blocks));
  const auto plan = detail::plan_chain(units, policy_.memory_bytes);
  if (!plan)
    fail(ErrorKind::Config, "recompute",
         "the blocks need " + mebibytes(detail::least_budget_bytes(units)) +
             " at least, whatever is computed again, and may keep " + mebibytes(policy_.memory_bytes),
         "allow them more, or make the micro-batch smaller");
  choice_ = std::make_shared<const Choice>(Choice{.parts = plan->parts, .blocks = std::ssize(units)});
  return paragraph(units, *plan, policy_.memory_bytes);
}

}  // namespace zero

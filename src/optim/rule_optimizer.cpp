#include "optim/rule_optimizer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/mix_bits.h"
#include "optim/host_tier.h"
#include "optim/kernel_passes.h"
#include "optim/tensor_passes.h"
#include "optim/update_segment.h"
#include "zero/error.h"

namespace zero {

namespace {

constexpr std::array kReadKinds{kGradientState};

std::vector<std::string> kinds_of(const OptimizerRule& rule) {
  std::vector<std::string> kinds;
  for (const std::string_view name : rule_state_names(rule)) {
    if (!has_8bit_states(rule)) {
      kinds.emplace_back(name);
      continue;
    }
    kinds.push_back(std::string(name) + "_codes");
    kinds.push_back(std::string(name) + "_scales");
  }
  return kinds;
}

void require_blocks(const OptimizerShard& shard, int64_t numel) {
  const auto is_border = [](int64_t at) { return at % eight_bit::kBlockNumel == 0; };
  for (const ShardSegment& segment : shard.segments)
    require(is_border(segment.begin) && is_border(segment.parameter_begin), ErrorKind::Usage, segment.name,
            "its moments in 8 bits begin inside a block of " + std::to_string(eight_bit::kBlockNumel));
  require(is_border(numel), ErrorKind::Usage, "optimizer shard",
          std::to_string(numel) + " elements with moments in 8 bits end inside a block");
}

}  // namespace

RuleOptimizer::RuleOptimizer(OptimizerRule rule, std::vector<ParameterGroup> groups, StateStore& states,
                             std::vector<OptimizerShard> shards, int parameters, Execution execution,
                             uint64_t rounding_seed)
    : rule_(rule),
      groups_(std::move(groups)),
      in_8bit_(has_8bit_states(rule_)),
      kinds_(kinds_of(rule_)),
      states_(states),
      shards_(std::move(shards)),
      steps_(parameters, 0),
      execution_(execution),
      rounding_seed_(rounding_seed) {
  int64_t segments = 0;
  for (const OptimizerShard& shard : shards_) {
    order_.push_back(order_.size());
    first_number_.push_back(segments);
    if (!is_on_host(shard)) segments += std::ssize(shard.segments);
    const auto lease = states_.lend(shard.unit, {kMasterState}, StateStore::Use::Shape);
    const int64_t numel = lease[kMasterState].numel();
    at::TensorOptions options = lease[kMasterState].options().dtype(at::kFloat);
    // The master may be on the host where the moments are not: the parameter itself is it.
    if (states_.host() != nullptr && !is_on_host(shard))
      options = options.device(states_.host()->link.device());
    const bool has_matrices = std::holds_alternative<Muon>(rule_) && !shard.matrices.empty();
    require(!has_matrices || execution_ == Execution::kernels, ErrorKind::Unsupported, "Muon",
            "its matrices are for ranks on CPU", "choose another optimizer on devices");
    require(!is_factored(rule_) || execution_ == Execution::kernels, ErrorKind::Unsupported, "Adafactor",
            "its sums over rows and columns are for ranks on CPU", "choose another optimizer on devices");
    const bool rounds = lease[kMasterState].scalar_type() == at::kBFloat16;
    require(!rounds || execution_ == Execution::kernels, ErrorKind::Unsupported, "stochastic_rounding",
            "parameters without a master are for ranks on CPU", "leave it off on devices");
    if (in_8bit_) {
      require_blocks(shard, numel);
      create_8bit(shard, numel, options);
      continue;
    }
    for (const std::string& kind : kinds_) states_.create(shard.unit, kind, numel, options, shard.tier);
  }
  if (is_factored(rule_)) create_factors();
  if (execution_ == Execution::fused_operators && segments > 0) make_rows();
}

void RuleOptimizer::create_8bit(const OptimizerShard& shard, int64_t numel, const at::TensorOptions& fp32) {
  for (size_t i = 0; i < kinds_.size(); i += 2) {
    states_.create(shard.unit, kinds_[i], numel, fp32.dtype(at::kByte), shard.tier);
    states_.create(shard.unit, kinds_[i + 1], eight_bit::blocks_of(numel), fp32, shard.tier,
                   eight_bit::kBlockNumel);
  }
}

std::vector<std::string_view> RuleOptimizer::updated_kinds() const {
  std::vector<std::string_view> kinds{kMasterState, kParameterState};
  kinds.insert(kinds.end(), kinds_.begin(), kinds_.end());
  return kinds;
}

std::vector<std::string_view> RuleOptimizer::all_kinds() const {
  std::vector<std::string_view> kinds = updated_kinds();
  kinds.insert(kinds.end(), kReadKinds.begin(), kReadKinds.end());
  return kinds;
}

RuleMemory RuleOptimizer::borrow(const StatePiece& piece) const {
  RuleMemory memory{.lease = states_.lend(piece, updated_kinds(), StateStore::Use::Write, kReadKinds),
                    .master = {},
                    .gradient = {},
                    .parameter = {},
                    .states = {}};
  memory.master = memory.lease[kMasterState];
  memory.gradient = memory.lease[kGradientState];
  if (!keeps_no_copy(memory.lease)) memory.parameter = memory.lease[kParameterState];
  for (const std::string& kind : kinds_) memory.states.push_back(memory.lease[kind]);
  if (states_.host() != nullptr) memory.stage(states_.host()->link.device());
  return memory;
}

kernels::Rates RuleOptimizer::rates_of(const ShardSegment& segment, const StepInput& input) const {
  kernels::Rates rates{.lr = input.lr,
                       .weight_decay = std::visit([](const auto& one) { return one.weight_decay; }, rule_),
                       .gradient_scale = input.gradient_scale,
                       .step = steps_[segment.parameter] + 1,
                       .dims = segment.dims,
                       .betas = input.betas};
  if (segment.group == 0) return rates;
  const ParameterGroup& group = groups_[segment.group - 1];
  rates.lr = group.lr.value_or(input.lr * group.lr_scale);
  rates.weight_decay = group.weight_decay.value_or(rates.weight_decay);
  return rates;
}

kernels::RoundingKey RuleOptimizer::rounding_key(const ShardSegment& segment) const {
  uint64_t key = mix_bits(rounding_seed_ + kGoldenGamma);
  // The name, not the index: that may change with how parameters are grouped into units.
  for (const char letter : segment.name) key = mix_bits(key ^ static_cast<unsigned char>(letter));
  return {mix_bits(key + static_cast<uint64_t>(steps_[segment.parameter] + 1) * kGoldenGamma)};
}

namespace {

// Where the device decides, all may be.
bool is_used(const StepInput& input, const ShardSegment& segment) {
  return input.on_device != nullptr || input.used[segment.parameter];
}

}  // namespace

std::vector<RuleOptimizer::PieceOf> RuleOptimizer::used_pieces(const StepInput& input, bool whole,
                                                               bool on_host) const {
  std::vector<PieceOf> pieces;
  for (const size_t number : order_) {
    const OptimizerShard& shard = shards_[number];
    if (is_on_host(shard) != on_host) continue;
    std::vector<StatePiece> parts =
        pieces_with(shard, [&](const ShardSegment& segment) { return is_used(input, segment); });
    if (whole && !parts.empty())
      parts = {{shard.unit, 0, states_.pieces_of(shard.unit, all_kinds()).back().end}};
    for (const StatePiece& piece : parts) pieces.emplace_back(&shard, piece);
  }
  return pieces;
}

void RuleOptimizer::announce_all(std::span<const PieceOf> pieces) const {
  if (updates_on_host()) return;  // whose sweep it would end
  std::vector<StatePiece> sweep;
  for (const auto& [shard, piece] : pieces) sweep.push_back(piece);
  states_.announce(sweep, updated_kinds(), kReadKinds);
}

void RuleOptimizer::for_each_used(const StepInput& input, bool whole, const UseSegment& use) const {
  const std::vector<PieceOf> all = used_pieces(input, whole);
  std::vector<PieceOf> pieces = all;
  std::erase_if(pieces, [&](const PieceOf& one) {
    return std::find(input.done.begin(), input.done.end(), one.second) != input.done.end();
  });
  if (!whole) announce_all(pieces);
  for (const auto& [shard, piece] : pieces) {
    const RuleMemory memory = borrow(piece);
    use_segments(input, *shard, piece, memory, use);
    memory.put_back();
  }
  // The next sweep's: its first pieces are read while training goes on, unless it has yet to write some.
  const bool writes_first = std::any_of(shards_.begin(), shards_.end(), [&](const OptimizerShard& shard) {
    return states_.is_on_disk(shard.unit, kGradientState);
  });
  if (!whole && !writes_first) announce_all(all);
}

void RuleOptimizer::use_segments(const StepInput& input, const OptimizerShard& shard, const StatePiece& piece,
                                 const RuleMemory& memory, const UseSegment& use) const {
  int64_t number = first_number_[&shard - shards_.data()];
  for (const ShardSegment& segment : shard.segments) {
    const ShardSegment part = part_in(piece, segment);
    if (is_used(input, segment) && part.numel() > 0) use(memory, part, number);
    ++number;
  }
}

void RuleOptimizer::step(const StepInput& input) {
  check_step(input, steps_.size());
  require(!input.betas || hyperparameter(rule_, "betas"), ErrorKind::Unsupported, "ShardOptimizer::step",
          std::string(rule_name(rule_)) + " has no betas for the schedule to move",
          "set cycle_momentum to false");
  at::NoGradGuard no_grad;
  if (updates_on_host())
    step_with_host(input);
  else
    step_here(input);
  if (input.on_device == nullptr) count_step(input.used);
}

void RuleOptimizer::step_here(const StepInput& input) {
  if (rows_ != nullptr)
    step_fused(input);
  else
    std::visit([&](const auto& rule) { run(rule, input); }, rule_);
}

void RuleOptimizer::count_step(std::span<const char> used) {
  for (size_t i = 0; i < used.size(); ++i) steps_[i] += used[i] ? 1 : 0;
}

template <class Rule>
void RuleOptimizer::run(const Rule& rule, const StepInput& input) const {
  if constexpr (std::is_same_v<Rule, Adafactor>) return step_factored(rule, input);
  constexpr int64_t kSums = kernels::Arithmetic<Rule>::kSums;
  std::vector<double> sums;
  if constexpr (kSums > 0) sums = sums_of(rule, input);
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    if constexpr (std::is_same_v<Rule, Muon>)
      if (segment.is_matrix) return;
    update_segment(rule, memory, segment, input, kSums > 0 ? &sums[segment.parameter * kSums] : nullptr);
  });
  if constexpr (std::is_same_v<Rule, Muon>) step_matrices(rule, input);
}

template <class Rule>
std::vector<double> RuleOptimizer::sums_of(const Rule& rule, const StepInput& input) const {
  using Arithmetic = kernels::Arithmetic<Rule>;
  constexpr size_t kNumbers = size_t{Arithmetic::kSums} * kernels::kDigits;
  std::vector<double> digits(steps_.size() * kNumbers);
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    const auto scalars = Arithmetic::scalars(rule, rates_of(segment, input));
    const auto over = [&](int64_t begin, int64_t end, double* into) {
      if (begin == end) return;
      if (execution_ == Execution::kernels)
        return kernel_passes::direction<Rule>(memory, begin, end, scalars, into);
      tensor_passes::direction<Rule>(memory, begin, end, scalars, into);
    };
    double elsewhere[kNumbers] = {};  // what another rank counts
    over(segment.begin, segment.counted_begin, elsewhere);
    over(segment.counted_begin, segment.counted_end, &digits[segment.parameter * kNumbers]);
    over(segment.counted_end, segment.end, elsewhere);
  });
  if (input.sum_over_ranks) input.sum_over_ranks(digits);
  std::vector<double> sums(steps_.size() * Arithmetic::kSums);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = kernels::total_of(&digits[i * kernels::kDigits]);
  return sums;
}

std::vector<std::string> RuleOptimizer::state_names() const { return kinds_; }

void RuleOptimizer::set_parameter_steps(std::span<const int64_t> steps) {
  check_steps(steps, steps_.size());
  steps_.assign(steps.begin(), steps.end());
  const auto is_fresh = [&](const ShardSegment& segment) { return steps_[segment.parameter] == 0; };
  forget_fresh_factors();
  for (const OptimizerShard& shard : shards_) {
    if (std::none_of(shard.segments.begin(), shard.segments.end(), is_fresh)) continue;
    const std::vector<std::string_view> kinds(kinds_.begin(), kinds_.end());
    const auto lease = states_.lend(shard.unit, kinds, StateStore::Use::Write);
    for (const ShardSegment& segment : shard.segments) {
      if (!is_fresh(segment)) continue;
      for (const std::string_view kind : kinds) {
        const int64_t each = states_.elements_each(shard.unit, kind);
        lease[kind].narrow(0, segment.begin / each, (segment.numel() + each - 1) / each).zero_();
      }
    }
  }
}

void check_steps(std::span<const int64_t> steps, size_t parameters) {
  const auto place = "ShardOptimizer::set_parameter_steps";
  require(
      steps.size() == parameters, ErrorKind::Usage, place,
      "got " + std::to_string(steps.size()) + " counts for " + std::to_string(parameters) + " parameters");
  for (const int64_t count : steps) {
    require(count >= 0, ErrorKind::Usage, place, "a count is " + std::to_string(count) + ", expected >= 0");
  }
}

}  // namespace zero

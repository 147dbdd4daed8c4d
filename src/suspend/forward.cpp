#include "suspend/forward.h"

#include <ATen/Context.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "suspend/hollow.h"
#include "zero/error.h"

namespace zero::detail {

RandomPlace::RandomPlace(at::Device device) {
  const auto add = [&](at::Device one) {
    at::Generator generator = at::globalContext().defaultGenerator(one);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  };
  add(at::kCPU);
  if (!device.is_cpu()) add(device);
}

void RandomPlace::restore() const {
  for (const auto& [generator, state] : states_) {
    at::Generator target = generator;
    const std::lock_guard<std::mutex> lock(target.mutex());
    target.set_state(state);
  }
}

SuspendedForward::SuspendedForward(const torch::nn::Module& module, const Whole& example,
                                   std::vector<std::vector<std::string>> units, bool by_hand,
                                   const Counts& counts, int stages, at::Device device)
    : shared_{.sources = Sources(module, std::move(units)), .device = device}, stages_(stages) {
  const Trace trace = this->trace(example, 0);
  const std::vector<int> first = first_uses(trace);
  if (!by_hand) {
    std::vector<int> order(first.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return first[a] < first[b]; });
    shared_.sources.reorder(order);
  }
  const std::vector<int> units_of = units_of_operators(trace, shared_.sources.units());
  for (int unit = 0; unit < shared_.sources.unit_count(); ++unit) {
    const bool is_read = first_uses(trace)[static_cast<size_t>(unit)] < std::ssize(trace.operators);
    const bool comes = std::find(units_of.begin(), units_of.end(), unit) != units_of.end();
    require(comes || !is_read, ErrorKind::Config, "pipeline's units",
            "the forward uses \"" + shared_.sources.unit_name(unit) + "\" only behind units that come later",
            "give units in the order in which the forward uses them");
  }
  const std::vector<double> costs = costs_of_units(trace, units_of, shared_.sources.unit_count());
  const std::vector<int64_t> counted = counts(costs);
  require(std::ssize(counted) == stages, ErrorKind::Config, "pipeline's units",
          "counts for " + std::to_string(counted.size()) + " stages, expected " + std::to_string(stages));
  for (int stage = 0; stage < stages; ++stage) {
    require(counted[static_cast<size_t>(stage)] >= 0, ErrorKind::Config, "pipeline's units",
            "a negative count");
    stage_of_unit_.insert(stage_of_unit_.end(), static_cast<size_t>(counted[static_cast<size_t>(stage)]),
                          stage);
  }
  require(std::ssize(stage_of_unit_) == shared_.sources.unit_count(), ErrorKind::Config, "pipeline's units",
          "counts of " + std::to_string(stage_of_unit_.size()) + " units, expected " +
              std::to_string(shared_.sources.unit_count()));
  name_stages(trace);
}

void SuspendedForward::set_dtypes(std::optional<at::ScalarType> parameters,
                                  std::optional<at::ScalarType> buffers) {
  shared_.parameter_dtype = parameters;
  shared_.buffer_dtype = buffers;
}

Trace SuspendedForward::trace(const Whole& whole, int index) {
  const RandomPlace before(shared_.device);
  TracingPass pass(shared_);
  at::Tensor loss;
  {
    const TakeOperators take(&pass);
    loss = whole(index);
  }
  before.restore();
  require(any_shape_ || (loss.defined() && loss.numel() == 1), ErrorKind::Usage, "pipeline",
          "a loss is no scalar");
  return pass.finish(loss);
}

// Of each unit the first operator that reads it; their number: none does.
std::vector<int> SuspendedForward::first_uses(const Trace& trace) const {
  std::vector<int> first(static_cast<size_t>(shared_.sources.unit_count()),
                         static_cast<int>(trace.operators.size()));
  for (int op = static_cast<int>(trace.operators.size()) - 1; op >= 0; --op)
    for (const int source : trace.operators[static_cast<size_t>(op)].sources)
      // A shared parameter stands for the first of its units.
      if (shared_.sources[source].units.size() == 1)
        first[static_cast<size_t>(shared_.sources[source].units.front())] = op;
  for (int source = 0; source < shared_.sources.count(); ++source) {
    const std::vector<int>& units = shared_.sources[source].units;
    if (units.size() < 2) continue;
    // Each reader in turn is the next of its units, where that has nothing else that is read.
    size_t next = 0;
    for (int op = 0; op < std::ssize(trace.operators) && next < units.size(); ++op) {
      const auto& read = trace.operators[static_cast<size_t>(op)].sources;
      if (std::find(read.begin(), read.end(), source) == read.end()) continue;
      int& known = first[static_cast<size_t>(units[next++])];
      known = std::min(known, op);
    }
  }
  return first;
}

void SuspendedForward::name_stages(const Trace& trace) {
  const std::vector<int> units_of = units_of_operators(trace, shared_.sources.units());
  const auto cuts = cut_into_stages(trace, units_of, stage_of_unit_, stages_);
  names_.assign(static_cast<size_t>(stages_), {});
  held_.assign(static_cast<size_t>(stages_),
               std::vector<bool>(static_cast<size_t>(shared_.sources.count()), false));
  std::vector<bool> is_used(static_cast<size_t>(shared_.sources.count()), false);
  int stage = 0;
  for (int op = 0; op < std::ssize(trace.operators); ++op) {
    while (stage + 1 < stages_ && op >= cuts[static_cast<size_t>(stage) + 1].at) ++stage;
    for (const int source : trace.operators[static_cast<size_t>(op)].sources) {
      held_[static_cast<size_t>(stage)][static_cast<size_t>(source)] = true;
      is_used[static_cast<size_t>(source)] = true;
    }
  }
  for (int source = 0; source < shared_.sources.count(); ++source) {
    const auto& units = shared_.sources[source].units;
    if (!is_used[static_cast<size_t>(source)] && !units.empty())
      held_[static_cast<size_t>(stage_of_unit_[static_cast<size_t>(units.front())])]
           [static_cast<size_t>(source)] = true;
    for (int s = 0; s < stages_; ++s)
      if (held_[static_cast<size_t>(s)][static_cast<size_t>(source)])
        names_[static_cast<size_t>(s)].insert(names_[static_cast<size_t>(s)].end(),
                                              shared_.sources[source].names.begin(),
                                              shared_.sources[source].names.end());
  }
}

void SuspendedForward::require_held(const Trace& trace, const std::vector<StageCut>& cuts) const {
  int stage = 0;
  for (int op = 0; op < std::ssize(trace.operators); ++op) {
    while (stage + 1 < stages_ && op >= cuts[static_cast<size_t>(stage) + 1].at) ++stage;
    for (const int source : trace.operators[static_cast<size_t>(op)].sources)
      require(held_[static_cast<size_t>(stage)][static_cast<size_t>(source)], ErrorKind::Unsupported,
              shared_.sources[source].names.front(),
              "stage " + std::to_string(stage) + " reads it, which it did not in the first forward",
              "give the pipeline an example in which each unit reads all that it ever reads");
  }
}

void SuspendedForward::begin(Whole whole, bool seeded, bool any_shape) {
  any_shape_ = any_shape;
  abandon();
  whole_ = std::move(whole);
  seeded_ = seeded;
  if (!seeded_) begins_.emplace(0, RandomPlace(shared_.device));
}

void SuspendedForward::abandon() {
  whole_ = nullptr;
  traced_.clear();
  begins_.clear();
}

const SuspendedForward::Traced& SuspendedForward::traced(int index) {
  const auto known = traced_.find(index);
  if (known != traced_.end()) return known->second;
  Traced found{.trace = trace(whole_, index), .cuts = {}};
  found.cuts = cut_into_stages(found.trace, units_of_operators(found.trace, shared_.sources.units()),
                               stage_of_unit_, stages_);
  require_held(found.trace, found.cuts);
  for (int op = 0; op < std::ssize(found.trace.operators); ++op)
    if (found.trace.operators[static_cast<size_t>(op)].is_random) found.last_random = op;
  return traced_.emplace(index, std::move(found)).first->second;
}

std::vector<at::Tensor> SuspendedForward::checked(const Traced& found, int stage,
                                                  const std::vector<at::Tensor>& incoming) const {
  const StageCut& begin = found.cuts[static_cast<size_t>(stage)];
  if (stage == 0) return {};
  const std::string place = "stage " + std::to_string(stage) + " of a suspended forward";
  require(incoming.size() == begin.crossing.size() + 1 &&
              incoming.back().item<int64_t>() == static_cast<int64_t>(found.trace.fingerprint),
          ErrorKind::Usage, place, "the stage before it ran another forward",
          "give all ranks of a pipeline the same micro-batches");
  return {incoming.begin(), incoming.end() - 1};
}

std::vector<at::Tensor> SuspendedForward::run(int stage, const std::vector<at::Tensor>& incoming, int index) {
  if (!seeded_) begins_.at(index).restore();
  const Traced& found = traced(index);
  const bool is_last = stage + 1 == stages_;
  const StageCut* end = is_last ? nullptr : &found.cuts[static_cast<size_t>(stage) + 1];
  const bool next_is_known = seeded_ || begins_.contains(index + 1);
  const bool goes_on = end != nullptr && !next_is_known && found.last_random >= end->at;
  const std::vector<at::Tensor> received = checked(found, stage, incoming);
  StagePass pass(shared_, found.trace, found.cuts[static_cast<size_t>(stage)], end, received, goes_on);
  at::Tensor loss;
  try {
    const TakeOperators take(&pass);
    loss = whole_(index);
  } catch (const SuspendedForwardLeft&) {
  }
  if (!next_is_known) begins_.emplace(index + 1, RandomPlace(shared_.device));
  std::vector<at::Tensor> outgoing = pass.outgoing();
  if (is_last) return {loss};
  outgoing.push_back(at::tensor(static_cast<int64_t>(found.trace.fingerprint),
                                at::TensorOptions(shared_.device).dtype(at::kLong)));
  return outgoing;
}

void SuspendedForward::end(int micro_batches) {
  const auto last = begins_.find(micro_batches);
  if (last != begins_.end()) last->second.restore();
  abandon();
}

}  // namespace zero::detail

#include "suspend/pass.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "base/mix_bits.h"
#include "lazy/lazy_tape.h"
#include "seam/stack_tensors.h"
#include "suspend/hollow.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using torch::jit::Stack;

template <class Visit>
void for_each_result(const Stack& stack, size_t base, Visit visit) {
  int place = 0;
  for (size_t i = base; i < stack.size(); ++i)
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.defined()) visit(tensor, place);
      ++place;
    });
}

size_t base_of(const c10::OperatorHandle& op, const Stack& stack) {
  return stack.size() - op.schema().arguments().size();
}

bool has_hollow(const Stack& stack, size_t base) {
  bool found = false;
  for (size_t i = base; i < stack.size(); ++i)
    for_each_tensor(stack[i],
                    [&](const at::Tensor& tensor) { found |= tensor.defined() && is_hollow(tensor); });
  return found;
}

uint64_t mixed(uint64_t state, uint64_t number) { return mix_bits(state + number + kGoldenGamma); }

}  // namespace

at::Tensor ForwardPass::twin_of(const at::Tensor& tensor) {
  const int source = shared_.sources.find(tensor);
  if (source < 0) return hollow_like(tensor);
  at::Tensor& twin = twins_[source];
  if (twin.defined()) return twin;
  at::ScalarType dtype = tensor.scalar_type();
  if (tensor.is_floating_point())
    dtype =
        (shared_.sources[source].is_buffer ? shared_.buffer_dtype : shared_.parameter_dtype).value_or(dtype);
  // Parameters of other stages may still be where they were built.
  return twin = hollow_like(tensor, dtype, shared_.device);
}

void ForwardPass::compute_shapes(const c10::OperatorHandle& op, Stack& stack, bool all_floating) {
  for (size_t i = base_of(op, stack); i < stack.size(); ++i)
    stack[i] = with_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || is_hollow(tensor)) return tensor;
      const bool becomes = shared_.sources.find(tensor) >= 0 || hollow_tag(tensor) != nullptr ||
                           (all_floating && tensor.is_floating_point() && tensor.dim() > 0);
      return becomes ? twin_of(tensor) : tensor;
    });
  inside_ = op.schema().name();
  struct Leave {
    std::string& inside;
    ~Leave() { inside.clear(); }
  } leave{inside_};
  shared_.shapes.compute(op, stack, inside_);
}

void ForwardPass::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
  const TakeOperators nobody(nullptr);
  pass_on_above_autograd(op, keys, &stack);
}

bool ForwardPass::take_inside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
  if (inside_.empty()) return false;
  if (has_hollow(stack, base_of(op, stack)))
    shared_.shapes.compute(op, stack, inside_);
  else
    run(op, keys, stack);
  return true;
}

TracingPass::TracingPass(ForwardShapes& shared) : ForwardPass(shared), records_(at::GradMode::is_enabled()) {
  shared_.shapes.draws = false;
}

bool TracingPass::is_bound(const c10::OperatorHandle& op, const Stack& stack, Trace::Operator& record) {
  const int index = static_cast<int>(trace_.operators.size());
  bool bound = false;
  for (size_t i = base_of(op, stack); i < stack.size(); ++i)
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (const int source = shared_.sources.find(tensor); source >= 0) {
        record.sources.push_back(source);
        bound = true;
      } else if (const auto value = value_of_.find(tensor.unsafeGetTensorImpl()); value != value_of_.end()) {
        trace_.values[static_cast<size_t>(value->second)].last_read = index;
        bound = true;
      } else if (hollow_tag(tensor) != nullptr) {
        bound = true;  // a buffer that has no values yet
      } else {
        require(!is_hollow(tensor), ErrorKind::Unsupported, record.name,
                "reads a tensor of another stage that no operator made",
                "use detach() and operators instead of data() and set_data()");
      }
    });
  return bound;
}

int TracingPass::storage_of(const at::Tensor& hollow, int made_by) {
  const auto [place, is_new] =
      storage_of_.try_emplace(hollow_storage(hollow), static_cast<int>(trace_.storages.size()));
  if (is_new) trace_.storages.push_back({made_by, -1});
  return place->second;
}

void TracingPass::note_writes(const c10::OperatorHandle& op, const Stack& stack, bool is_bound) {
  const auto& formal = op.schema().arguments();
  const size_t base = base_of(op, stack);
  for (size_t i = 0; i < formal.size(); ++i) {
    if (formal[i].alias_info() == nullptr || !formal[i].alias_info()->isWrite()) continue;
    require(!is_bound || !formal[i].is_out(), ErrorKind::Unsupported, op.schema().name(),
            "out= variants are not supported in a suspended forward",
            "use the variant that returns its result");
    for_each_tensor(stack[base + i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      require(!shared_.sources.is_shared_buffer(tensor), ErrorKind::Unsupported, op.schema().name(),
              "writes to a buffer that no unit of the pipeline has: every stage would",
              "name it in a unit's patterns");
      if (!is_bound) return;
      const bool is_own = shared_.sources.find(tensor) >= 0 || is_hollow(tensor);
      require(is_own, ErrorKind::Unsupported, op.schema().name(),
              "writes what a stage computes into a tensor that all stages have",
              "make that tensor of the stage's own: with new_zeros() or zeros_like()");
      const at::Tensor target = is_hollow(tensor) ? tensor : twin_of(tensor);
      trace_.storages[static_cast<size_t>(storage_of(target, -1))].last_written =
          static_cast<int>(trace_.operators.size());
    });
  }
}

void TracingPass::note_values(const Stack& stack, size_t base, Trace::Operator& record) {
  const int index = static_cast<int>(trace_.operators.size());
  for_each_result(stack, base, [&](const at::Tensor& tensor, int place) {
    if (!is_hollow(tensor)) return;
    const auto [known, is_new] =
        value_of_.try_emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(trace_.values.size()));
    if (!is_new) return;
    kept_.push_back(tensor);
    trace_.values.push_back({.made_by = index,
                             .output = place,
                             .last_read = index,
                             .storage = storage_of(tensor, index),
                             .nbytes = static_cast<int64_t>(tensor.numel() * tensor.element_size()),
                             .sizes = tensor.sizes().vec()});
    record.values.push_back(known->second);
    for (const int64_t size : tensor.sizes())
      trace_.fingerprint = mixed(trace_.fingerprint, static_cast<uint64_t>(size));
  });
}

void TracingPass::take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
  if (take_inside(op, keys, stack)) return;
  Trace::Operator record;
  record.name = op.schema().name();
  record.records = at::GradMode::is_enabled() == records_;
  record.is_bound = is_bound(op, stack, record);
  note_writes(op, stack, record.is_bound);
  const size_t base = base_of(op, stack);
  if (record.is_bound) {
    shared_.shapes.met_random = false;
    shared_.shapes.cost = 0;
    // Twins of sources that are only looked at have storages of their own.
    for (const int source : record.sources) storage_of(twin_of(shared_.sources[source].tensor), -1);
    compute_shapes(op, stack, /*all_floating=*/false);
    record.is_random = shared_.shapes.met_random;
    record.cost = shared_.shapes.cost;
    note_values(stack, base, record);
  } else {
    record.is_random = op.hasTag(at::Tag::nondeterministic_seeded) ||
                       record.name.find("dropout") != std::string::npos ||
                       record.name.starts_with("aten::rand");
    run(op, keys, stack);
  }
  trace_.fingerprint = mixed(trace_.fingerprint, std::hash<std::string>()(record.name));
  trace_.operators.push_back(std::move(record));
}

Trace TracingPass::finish(const at::Tensor& result) {
  require(result.defined(), ErrorKind::Usage, "pipeline", "a forward gave no tensor");
  const auto value = value_of_.find(result.unsafeGetTensorImpl());
  require(value != value_of_.end(), ErrorKind::Usage, "pipeline", "no parameter leads to the loss",
          "return the loss of the module that the pipeline was made of");
  trace_.values[static_cast<size_t>(value->second)].last_read = static_cast<int>(trace_.operators.size());
  return std::move(trace_);
}

StagePass::StagePass(ForwardShapes& shared, const Trace& trace, const StageCut& begin, const StageCut* end,
                     const std::vector<at::Tensor>& incoming, bool goes_on)
    : ForwardPass(shared), trace_(trace), begin_(begin), end_(end), incoming_(incoming), goes_on_(goes_on) {
  shared_.shapes.draws = true;
}

void StagePass::verify(const c10::OperatorHandle& op, int index) const {
  const bool is_known = index < static_cast<int>(trace_.operators.size());
  const std::string expected = is_known ? trace_.operators[static_cast<size_t>(index)].name : "its end";
  require(is_known && expected == op.schema().name(), ErrorKind::Usage, op.schema().name(),
          "the forward took another way than when its shapes were computed, which had " + expected + " here",
          "run the same operators whenever it is called for the same micro-batch");
}

// The tensors that the module holds become the received ones.
void StagePass::fill() {
  const TakeOperators nobody(nullptr);
  for (size_t i = 0; i < begin_.crossing.size(); ++i) {
    const at::Tensor& here = crossing_.at(begin_.crossing[i]);
    fill_hollow(here, incoming_[i]);
  }
}

void StagePass::keep_values(const Stack& stack, size_t base, int index) {
  const auto& made = trace_.operators[static_cast<size_t>(index)].values;
  if (made.empty()) return;
  const auto crosses = [&](const StageCut* cut, int value) {
    return cut != nullptr && std::binary_search(cut->crossing.begin(), cut->crossing.end(), value);
  };
  for_each_result(stack, base, [&](const at::Tensor& tensor, int place) {
    for (const int value : made)
      if (trace_.values[static_cast<size_t>(value)].output == place &&
          (crosses(&begin_, value) || crosses(end_, value)))
        crossing_[value] = tensor;
  });
}

void StagePass::compute_own(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack,
                            int index) {
  require(!has_hollow(stack, base_of(op, stack)), ErrorKind::Unsupported, op.schema().name(),
          "reads a tensor of another stage that did not come across",
          "use operators where the module goes around them");
  const size_t base = base_of(op, stack);
  run(op, keys, stack);
  keep_values(stack, base, index);
}

void StagePass::take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
  if (take_inside(op, keys, stack)) return;
  if (left_) throw SuspendedForwardLeft();
  const int index = next_++;
  verify(op, index);
  if (end_ != nullptr && index == end_->at && !goes_on_) {
    left_ = true;
    throw SuspendedForwardLeft();
  }
  if (index == begin_.at && !begin_.fills_early) fill();
  const bool is_own = index >= begin_.at && (end_ == nullptr || index < end_->at);
  const size_t base = base_of(op, stack);
  if (is_own) {
    compute_own(op, keys, stack, index);
  } else if (trace_.operators[static_cast<size_t>(index)].is_bound) {
    compute_shapes(op, stack, /*all_floating=*/index >= begin_.at);
    if (index < begin_.at) keep_values(stack, base, index);
  } else {
    run(op, keys, stack);
  }
  if (index + 1 == begin_.at && begin_.fills_early) fill();
}

std::vector<at::Tensor> StagePass::outgoing() {
  const int until = end_ != nullptr ? end_->at : static_cast<int>(trace_.operators.size());
  require(left_ || next_ >= until, ErrorKind::Usage, "pipeline", "the forward ended before its stage did",
          "run the same operators whenever it is called for the same micro-batch, and catch no exception "
          "but std::exception");
  std::vector<at::Tensor> tensors;
  if (end_ == nullptr) return tensors;
  for (const int value : end_->crossing) {
    const at::Tensor& tensor = crossing_.at(value);
    const Trace::Value& traced = trace_.values[static_cast<size_t>(value)];
    require(tensor.sizes() == at::IntArrayRef(traced.sizes), ErrorKind::Internal,
            trace_.operators[static_cast<size_t>(traced.made_by)].name,
            "its result has other sizes than were computed for it");
    tensors.push_back(tensor);
  }
  return tensors;
}

}  // namespace zero::detail

#include "seam/dispatch.h"

#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "seam/operator_observer.h"
#include "seam/stack_tensors.h"

namespace zero::detail {
namespace {

thread_local std::shared_ptr<OperatorRecorder> recorder_of_thread;
thread_local OwnKernels kernels_of_thread = nullptr;
std::atomic<OperatorObserver*> observer_of_process = nullptr;

void add_tag(const at::Tensor& tensor, std::vector<StorageTag*>& tags) {
  StorageTag* tag = tag_of(tensor);
  if (tag != nullptr && std::find(tags.begin(), tags.end(), tag) == tags.end()) tags.push_back(tag);
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (recorder_of_thread) {
    // Held across the call: what the operator does may end the scope that made it current.
    std::shared_ptr<OperatorRecorder> recorder = recorder_of_thread;
    BypassIntercept bypass;
    recorder->record(op, keys, *stack);
    return;
  }
  thread_local std::vector<StorageTag*> scratch;
  std::vector<StorageTag*> tags = std::move(scratch);
  tags.clear();
  const size_t arguments = op.schema().arguments().size();
  for (size_t i = stack->size() - arguments; i < stack->size(); ++i)
    for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) { add_tag(tensor, tags); });
  BypassIntercept bypass;
  if (!tags.empty()) {
    if (auto* listener = dynamic_cast<OperatorListener*>(tags.front()))
      listener->before(op, kind_of(op), tags, *stack);
  }
  scratch = std::move(tags);
  OperatorObserver* const observer = observer_of_process.load(std::memory_order_acquire);
  if (observer != nullptr) observer->before(op, *stack);
  if (kernels_of_thread == nullptr || !kernels_of_thread(op, *stack))
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Fake),
                       stack);
  if (observer != nullptr) observer->after(op, *stack);
}

// Registered when the first scope opens, for the life of the process: the dispatcher's table is the process's
// own.
void register_fallback() {
  static torch::Library library(torch::Library::IMPL, "_", c10::DispatchKey::Fake, __FILE__, __LINE__);
  static bool once = [] {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    return true;
  }();
  (void)once;
}

}  // namespace

OperatorKind kind_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  bool writes = false;
  for (const c10::Argument& argument : schema.arguments())
    writes |= argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  if (writes) return op.hasTag(at::Tag::inplace_view) ? OperatorKind::InplaceView : OperatorKind::Writes;
  for (const c10::Argument& result : schema.returns())
    if (result.alias_info() != nullptr) return OperatorKind::View;
  return OperatorKind::Reads;
}

InterceptOperators::InterceptOperators(std::shared_ptr<OperatorRecorder> recorder, OwnKernels kernels)
    : include_((register_fallback(), c10::DispatchKey::Fake)),
      previous_(std::exchange(recorder_of_thread, std::move(recorder))),
      previous_kernels_(std::exchange(kernels_of_thread, kernels)) {}

InterceptOperators::~InterceptOperators() {
  recorder_of_thread = std::move(previous_);
  kernels_of_thread = previous_kernels_;
}

ObserveOperators::ObserveOperators(OperatorObserver& observer)
    : previous_(observer_of_process.exchange(&observer, std::memory_order_acq_rel)) {}
ObserveOperators::~ObserveOperators() { observer_of_process.store(previous_, std::memory_order_release); }

std::shared_ptr<OperatorRecorder> current_recorder() { return recorder_of_thread; }
OwnKernels current_kernels() { return kernels_of_thread; }

}  // namespace zero::detail

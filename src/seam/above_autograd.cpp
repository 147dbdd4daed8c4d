#include "seam/above_autograd.h"

#include <torch/library.h>

#include <atomic>
#include <utility>

namespace zero::detail {
namespace {

thread_local OperatorTaker* taker_of_thread = nullptr;
thread_local bool casts_in_thread = false;
std::atomic<AboveAutograd> handler_of_process = nullptr;
std::atomic<CastAboveAutograd> cast_of_process = nullptr;

void take_above_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (taker_of_thread != nullptr) return taker_of_thread->take(op, keys, *stack);
  pass_on_above_autograd(op, keys, stack);
}

// For the life of the process: the dispatcher's table is the process's own.
void register_above_autograd() {
  static torch::Library library(torch::Library::IMPL, "_", kAboveAutograd, __FILE__, __LINE__);
  static const bool once = [] {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&take_above_autograd>());
    return true;
  }();
  (void)once;
}

}  // namespace

void set_above_autograd(AboveAutograd handler) {
  register_above_autograd();
  handler_of_process = handler;
}

void set_cast_above_autograd(CastAboveAutograd cast) {
  register_above_autograd();
  cast_of_process = cast;
}

CastOperators::CastOperators()
    : include_((register_above_autograd(), kAboveAutograd)),
      previous_(std::exchange(casts_in_thread, true)) {}

CastOperators::~CastOperators() { casts_in_thread = previous_; }

namespace {

void compute_above_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  if (const AboveAutograd handler = handler_of_process) return handler(op, keys, stack);
  const c10::impl::ExcludeDispatchKeyGuard exclude{c10::DispatchKeySet(kAboveAutograd)};
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kAboveAutograd), stack);
}

}  // namespace

void pass_on_above_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  const CastAboveAutograd cast = casts_in_thread ? cast_of_process.load() : nullptr;
  if (cast == nullptr) return compute_above_autograd(op, keys, stack);
  cast(op, stack, [&] { compute_above_autograd(op, keys, stack); });
}

TakeOperators::TakeOperators(OperatorTaker* taker)
    : include_((register_above_autograd(), kAboveAutograd)),
      previous_(std::exchange(taker_of_thread, taker)) {}

TakeOperators::~TakeOperators() { taker_of_thread = previous_; }

}  // namespace zero::detail

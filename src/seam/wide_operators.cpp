#include "seam/wide_operators.h"

#include <c10/core/GradMode.h>

#include <optional>
#include <utility>

#include "seam/dispatch.h"
#include "seam/stack_tensors.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

thread_local bool always_of_thread = false;

bool is_narrow(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf);
}

/// What an operator's arguments are.
struct Found {
  std::optional<at::ScalarType> wide;  // what a wide storage has its results in
  bool narrow = false;                 // something narrower
  bool already = false;                // fp32 or fp64 beside the wide ones
};

Found look_at(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  Found found;
  const size_t base = stack.size() - op.schema().arguments().size();
  for (size_t i = base; i < stack.size(); ++i)
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.is_floating_point()) return;
      const StorageTag* const tag = tag_of(tensor);
      if (tag != nullptr && tag->narrow)
        found.wide = tag->narrow;
      else if (is_narrow(tensor))
        found.narrow = true;
      else if (tensor.dim() > 0)
        found.already = true;
    });
  return found;
}

// Running statistics are written although no schema says so.
bool keeps_statistics(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name.find("batch_norm") != std::string::npos || name.find("instance_norm") != std::string::npos;
}

void require_reads_only(const c10::OperatorHandle& op, OperatorKind kind) {
  const char* const place = "fp32_parameters";
  require(kind == OperatorKind::Reads, ErrorKind::Unsupported, place,
          op.schema().name() + " writes into an argument that is not fp32, and reads a parameter that is",
          "use the operator that returns its result");
  require(!keeps_statistics(op), ErrorKind::Unsupported, place,
          op.schema().name() + " keeps statistics in buffers that are not fp32",
          "set buffer_dtype to fp32, and the module's input too");
}

void cast_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.schema().arguments().size();
  for (size_t i = base; i < stack.size(); ++i) {
    if (!may_hold_tensors(stack[i])) continue;
    stack[i] = with_tensors(stack[i], [](const at::Tensor& tensor) {
      return is_narrow(tensor) ? tensor.to(at::kFloat) : tensor;
    });
  }
}

void cast_results(const c10::OperatorHandle& op, torch::jit::Stack& stack, at::ScalarType narrow) {
  const size_t base = stack.size() - op.schema().returns().size();
  for (size_t i = base; i < stack.size(); ++i) {
    if (!may_hold_tensors(stack[i])) continue;
    stack[i] = with_tensors(stack[i], [narrow](const at::Tensor& tensor) {
      return tensor.defined() && tensor.scalar_type() == at::kFloat ? tensor.to(narrow) : tensor;
    });
  }
}

// A cast that the program asks for, and what has no arguments, are what they are.
bool is_cast(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::to" || name == "aten::_to_copy" || name == "aten::copy_" || name == "aten::float";
}

void compute_wide(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::function_ref<void()> run) {
  if (!always_of_thread && !c10::GradMode::is_enabled()) return run();
  const Found found = look_at(op, *stack);
  if (!found.wide || (found.already && !found.narrow) || is_cast(op)) return run();
  const OperatorKind kind = kind_of(op);
  if (kind == OperatorKind::View || kind == OperatorKind::InplaceView) return run();
  if (found.narrow) {
    require_reads_only(op, kind);
    cast_arguments(op, *stack);
  }
  run();
  if (kind == OperatorKind::Reads) cast_results(op, *stack, *found.wide);
}

}  // namespace

WideOperators::WideOperators(bool always)
    : cast_((set_cast_above_autograd(&compute_wide), CastOperators())),
      previous_always_(std::exchange(always_of_thread, always)) {}

WideOperators::~WideOperators() { always_of_thread = previous_always_; }

}  // namespace zero::detail

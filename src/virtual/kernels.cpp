// Operators of virtual devices: the CPU's own kernels on the same bytes.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/as_strided_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <chrono>
#include <optional>

#include "virtual/copies.h"
#include "virtual/operator_call.h"
#include "virtual/operator_traits.h"
#include "virtual/runtime.h"
#include "virtual/shapes.h"
#include "zero/error.h"

namespace zero::virtual_device {
namespace {

using c10::DispatchKey, c10::DispatchKeySet;
using Clock = std::chrono::steady_clock;

/// CPU tensors that this thread makes are device memory.
class KernelScope {
 public:
  explicit KernelScope(const Stamp& at) : before_(this_thread().kernel) { this_thread().kernel = &at; }
  ~KernelScope() { this_thread().kernel = before_; }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  const Stamp* before_;
};

/// The CPU's default generator stands for the device's: operators such as native_dropout take none as an
/// argument. Other threads must not draw on the CPU at the same time.
class DeviceDraws {
 public:
  explicit DeviceDraws(int device)
      : host_(at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator())),
        device_(cpu_generator_of(default_generator(device))),
        own_(at::check_generator<at::CPUGeneratorImpl>(device_)),
        saved_(state_of(*host_)) {
    set_state(*host_, state_of(*own_));
  }
  ~DeviceDraws() {
    set_state(*own_, state_of(*host_));
    set_state(*host_, saved_);
  }
  DeviceDraws(const DeviceDraws&) = delete;
  DeviceDraws& operator=(const DeviceDraws&) = delete;

 private:
  struct State {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  static State state_of(at::CPUGeneratorImpl& generator) {
    return {generator.engine(), generator.next_float_normal_sample(), generator.next_double_normal_sample()};
  }
  static void set_state(at::CPUGeneratorImpl& generator, const State& state) {
    generator.set_engine(state.engine);
    generator.set_next_float_normal_sample(state.next_float);
    generator.set_next_double_normal_sample(state.next_double);
  }
  at::CPUGeneratorImpl* host_;
  at::Generator device_;
  at::CPUGeneratorImpl* own_;
  State saved_;
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Whoever intercepts operators must not see the insides of a kernel.
  const c10::impl::ExcludeDispatchKeyGuard no_modes(DispatchKeySet(DispatchKey::Fake));
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &stack);
}

Touch touch_of(const at::Tensor& tensor) {
  Block* block = tensor.has_storage()
                     ? block_of(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl())
                     : nullptr;
  return {block, region_of(tensor), &tensor};
}

void arguments_to_cpu(const OperatorTraits& traits, torch::jit::Stack& stack, size_t base,
                      OperatorCall& call) {
  const bool ignores_self = traits.beta_argument >= 0 && [&] {
    const c10::IValue& beta = stack[base + static_cast<size_t>(traits.beta_argument)];
    return beta.isScalar() && beta.toScalar().toDouble() == 0;
  }();
  for (size_t i = base; i < stack.size(); ++i) {
    const size_t argument = i - base;
    const bool is_written = argument < 64 && (traits.written_arguments >> argument & 1) != 0;
    const bool is_unread = argument < 64 && (traits.unread_arguments >> argument & 1) != 0;
    call.to_cpu(stack[i], is_written, !is_unread && !(ignores_self && argument == 0));
  }
}

// Before the kernel runs: its results may get memory that an operand should still have had.
void note_operands(Machine& owner, OperatorCall& call, const Stamp& at) {
  const std::lock_guard lock(owner.mutex());
  for (const OperatorCall::Operand& operand : call.operands()) {
    const Touch touch = touch_of(operand.device);
    if (operand.is_read) owner.require_written(touch, at);
    if (operand.is_read || operand.is_written) owner.note(touch, operand.is_written, at);
  }
}

void note_results(Machine& owner, OperatorCall& call) {
  for (const OperatorCall::Operand& operand : call.operands())
    if (operand.is_written) owner.note_written(touch_of(operand.device));
  for (const at::Tensor& result : call.fresh_results()) owner.note_written(touch_of(result));
}

// Of what was written, which memory has values from now on.
void note_all_contents(OperatorCall& call, bool from_values) {
  for (const OperatorCall::Operand& operand : call.operands())
    if (operand.is_written) note_contents(operand.device, from_values);
  for (const at::Tensor& result : call.fresh_results()) note_contents(result, from_values);
}

double bytes_of(const OperatorTraits& traits, OperatorCall& call) {
  double written = 0, read = 0;
  for (const at::Tensor& result : call.fresh_results()) written += static_cast<double>(result.nbytes());
  bool is_first = true;
  for (const OperatorCall::Operand& operand : call.operands()) {
    const auto bytes = static_cast<double>(operand.cpu.nbytes());
    read += traits.reads_rows_only && is_first ? std::min(bytes, written) : bytes;
    if (operand.is_written && operand.is_read) written += bytes;
    is_first = false;
  }
  return read + written;
}

/// `host_ns`: how long this host took.
void account(Machine& owner, const OperatorTraits& traits, OperatorCall& call, const Stamp& at,
             double host_ns) {
  const auto operands = call.ordered();
  const at::Tensor result = call.fresh_results().empty() ? at::Tensor() : call.fresh_results()[0];
  double flops = 0;
  if (traits.flops != FlopsRule::None && (result.defined() || traits.flops != FlopsRule::Convolution))
    flops = flops_of(traits.flops, {operands.data(), operands.size()}, result);
  const Dtype dtype = operands.empty() ? Dtype::f32 : rate_type(operands[0].scalar_type());
  const double bytes = bytes_of(traits, call);
  if (owner.has_samples()) owner.add_sample({traits.name, flops, bytes, dtype, host_ns});
  owner.spend(at, Lane::Compute, owner.description().time_of({traits.name, flops, bytes, dtype}), bytes,
              flops);
}

void run_view(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t base) {
  OperatorCall call(Shown::Addresses);
  for (size_t i = base; i < stack.size(); ++i) call.to_cpu(stack[i], false, false);
  call.default_device(this_thread().device);
  run_on_cpu(op, stack);
  for (size_t i = base; i < stack.size(); ++i) call.to_device(stack[i]);
}

void run_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const OperatorTraits& traits = traits_of(op);
  const size_t base = stack->size() - op.schema().arguments().size();
  Machine& owner = machine();
  this_thread().last_work = traits.name.c_str();
  if (traits.is_view) return run_view(op, *stack, base);
  const bool computes = !owner.has_shapes_only() || have_values(*stack, base);
  OperatorCall call(computes ? Shown::Values : Shown::Shapes);
  arguments_to_cpu(traits, *stack, base, call);
  call.default_device(this_thread().device);
  TORCH_CHECK(!call.has_host_tensors() || traits.is_index, traits.name,
              ": expected all tensors on virtual:", call.device(),
              ", but one is on the host; move it with to()");
  if (traits.is_host_only && !owner.has_operator(traits.name))
    owner.note_fault(FaultKind::HostOnlyOperator,
                     traits.name +
                         " has a kernel for CPUs only and would read device memory there; register one "
                         "for the device, or move its tensors to the host");
  const Stamp at = owner.launch(current_clock(call.device()), traits.name.c_str());
  const bool is_checked = owner.has_checks() && traits.uses_values;
  if (is_checked) note_operands(owner, call, at);
  const auto began = owner.has_samples() ? Clock::now() : Clock::time_point();
  if (computes) {
    std::optional<DeviceDraws> draws;
    if (traits.is_random) draws.emplace(call.device());
    const KernelScope scope(at);
    run_on_cpu(op, *stack);
  } else {
    run_on_shapes(op, traits.name, *stack);
  }
  const auto ended = owner.has_samples() ? Clock::now() : Clock::time_point();
  const std::lock_guard lock(owner.mutex());
  const bool writes = call.take_over_changes();
  for (size_t i = base; i < stack->size(); ++i) call.to_device((*stack)[i]);
  if (owner.has_shapes_only()) note_all_contents(call, computes);
  if (!traits.uses_values || (!writes && call.fresh_results().empty() && !traits.waits)) return;
  if (is_checked) note_results(owner, call);
  account(owner, traits, call, at, std::chrono::duration<double, std::nano>(ended - began).count());
  if (traits.waits && (!traits.is_index || call.has_mask())) {
    owner.note_host_wait(call.device(), traits.name);
    owner.synchronize(at.clock);
  }
  owner.raise_faults(traits.name.c_str());
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> /*pin_memory*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_at(device ? index_of(*device) : this_thread().device));
  return at::detail::empty_generic(size, &device_allocator(), DispatchKeySet(DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> /*pin_memory*/) {
  const c10::DeviceGuard guard(device_at(device ? index_of(*device) : this_thread().device));
  return at::detail::empty_strided_generic(size, stride, &device_allocator(),
                                           DispatchKeySet(DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  Machine& owner = machine();
  const std::lock_guard lock(owner.mutex());
  OperatorCall call;
  const at::Tensor cpu = call.to_cpu(tensor, false, true);
  const Stamp at = owner.launch(current_clock(call.device()), "aten::_local_scalar_dense");
  const Touch touch = touch_of(tensor);
  owner.require_written(touch, at);
  owner.note(touch, false, at);
  const auto bytes = static_cast<double>(tensor.nbytes());
  owner.spend(at, Lane::CopyOut, owner.description().device_to_host.time_of(bytes), bytes, 0);
  owner.note_host_read(call.device());
  owner.note_host_wait(call.device(), at.work);
  owner.synchronize(at.clock);
  owner.raise_faults(at.work);
  if (!has_values(tensor)) return at::Scalar(1);
  return at::_local_scalar_dense(cpu);
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  if (Block* block = block_of(*tensor.storage().unsafeGetStorageImpl()))
    machine().record_stream(*block, clock_of(stream));
}

// Module::to and set_data ask whether a host tensor may turn into a device tensor.
bool may_exchange(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.layout() == at::kStrided && other.layout() == at::kStrided;
}

// The choice that the CPU would make.
int64_t attention_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool has_grouped_queries) {
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, is_causal, scale,
                                           has_grouped_queries);
}

torch::CppFunction boxed_operator() { return torch::CppFunction::makeFromBoxedFunction<&run_operator>(); }

// Where an operator has a CPU kernel and a composite one, the composite would win over the fallback.
void prefer_cpu_kernels(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !name.name.starts_with("aten::") || op->hasKernelForDispatchKey(DispatchKey::PrivateUse1))
      continue;
    const bool is_composite = op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
    const bool is_structured =
        op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
    // One kernel on a real device; the composite one would be one for each tensor.
    const bool is_foreach =
        is_composite && name.name.starts_with("aten::_foreach_") && name.name != "aten::_foreach_copy_";
    if (!op->hasKernelForDispatchKey(DispatchKey::CPU) && !is_foreach) continue;
    if (is_composite || is_structured) library.impl(c10::toString(name).c_str(), boxed_operator());
  }
}

}  // namespace

}  // namespace zero::virtual_device

namespace at::native {
// NOLINTNEXTLINE(misc-use-anonymous-namespace)
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &zero::virtual_device::attention_choice)
}  // namespace at::native

namespace zero::virtual_device {

void register_kernels() {
  using torch::Library;
  static Library all(Library::IMPL, "_", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(boxed_operator());
  static Library aten(Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  aten.impl("_local_scalar_dense", &local_scalar);
  aten.impl("record_stream", &record_stream);
  // Most views end here; without boxes they cost a third.
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  // Composite kernels that choose by the device.
  for (const char* name : {"convolution", "convolution_backward"}) aten.impl(name, boxed_operator());
  prefer_cpu_kernels(aten);
  aten.impl("_has_compatible_shallow_copy_type", &may_exchange);  // also where autograd is left out
  static Library autograd(Library::IMPL, "aten", DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd.impl("_has_compatible_shallow_copy_type", &may_exchange);
  // Without these the fallback of lazily conjugated or negated tensors and copy_ call each other for ever.
  static Library conjugate(Library::IMPL, "aten", DispatchKey::Conjugate, __FILE__, __LINE__);
  conjugate.impl("_copy_from", torch::CppFunction::makeFallthrough());
  static Library negative(Library::IMPL, "aten", DispatchKey::Negative, __FILE__, __LINE__);
  negative.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace zero::virtual_device

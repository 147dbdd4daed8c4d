#include "suspend/shapes.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "seam/above_autograd.h"
#include "seam/dispatch.h"
#include "seam/stack_tensors.h"
#include "suspend/hollow.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using torch::jit::Stack;

/// LibTorch's kernels alone: no graph, no seam.
struct Kernels {
  TakeOperators no_taker{nullptr};
  c10::impl::ExcludeDispatchKeyGuard exclude{c10::DispatchKeySet(kAboveAutograd)};
  BypassIntercept bypass;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

at::Device device_in(const Stack& stack, size_t base) {
  std::optional<at::Device> device;
  for (size_t i = base; i < stack.size(); ++i)
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (!device || (is_hollow(tensor) && tensor.dim() > 0)) device = tensor.device();
    });
  return device.value_or(at::kCPU);
}

bool reads_mask(const c10::OperatorHandle& op, const Stack& stack, size_t base) {
  const auto indices = op.schema().argumentIndexWithName("indices");
  bool found = false;
  if (indices)
    for_each_tensor(stack[base + static_cast<size_t>(*indices)], [&](const at::Tensor& tensor) {
      found |= tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
    });
  return found;
}

// What has no shape until its values are known, or changes what others see of a tensor.
void refuse_what_depends_on_values(const c10::OperatorHandle& op, const Stack& stack, size_t base,
                                   const std::string& place) {
  const std::string& name = op.schema().name();
  const bool by_index = is_one_of(name, {"aten::index", "aten::index_put", "aten::index_put_",
                                         "aten::_index_put_impl_", "aten::_unsafe_index"});
  const bool depends = by_index ? reads_mask(op, stack, base)
                                : op.hasTag(at::Tag::dynamic_output_shape) ||
                                      op.hasTag(at::Tag::data_dependent_output) ||
                                      is_one_of(name, {"aten::_local_scalar_dense", "aten::equal",
                                                       "aten::is_nonzero", "aten::nonzero"});
  require(!depends, ErrorKind::Unsupported, place,
          "the forward of a pipeline's module reads values" +
              (name == place ? std::string() : " (by " + name + ")") + " that another stage computes",
          by_index ? "use torch::where or masked_fill, whose shapes do not depend on the mask"
                   : "decide by shapes, or by tensors that no parameter leads to");
  require(!is_one_of(name, {"aten::resize_", "aten::resize_as_", "aten::set_", "aten::set_data"}),
          ErrorKind::Unsupported, place, "changes the storage of a tensor of another stage",
          "make a new tensor");
  require(!is_one_of(name, {"aten::poisson", "aten::multinomial", "aten::binomial", "aten::_standard_gamma",
                            "aten::_sample_dirichlet"}),
          ErrorKind::Unsupported, place,
          "draws as many random numbers as the values of another stage ask for",
          "draw from tensors that no parameter leads to");
  require(!at::autocast::is_autocast_enabled(device_in(stack, base).type()), ErrorKind::Unsupported, place,
          "automatic casts are on in a pipeline's forward", "use EngineOptions::dtype instead");
}

bool is_composed_of_others(const c10::OperatorHandle& op, at::Device device) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::computeDispatchKey(at::kFloat, at::kStrided, device));
}

c10::DispatchKey autograd_key(at::Device device) {
  return device.is_cuda() ? c10::DispatchKey::AutogradCUDA : c10::DispatchKey::AutogradCPU;
}

bool returns_tensors(const c10::OperatorHandle& op) {
  return std::all_of(op.schema().returns().begin(), op.schema().returns().end(), [](const auto& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

// The first numbers' sizes decide how many are drawn, not their values.
void draw(const c10::OperatorHandle& op, const Stack& stack, size_t base) {
  Stack arguments(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  const Kernels kernels;
  for (c10::IValue& value : arguments)
    value = with_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() && is_hollow(tensor)
                 ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).fill_(1)
                 : tensor;
    });
  op.callBoxed(&arguments);
}

Stack written_arguments(const c10::OperatorHandle& op, const Stack& stack, size_t base) {
  Stack results;
  const auto& formal = op.schema().arguments();
  for (size_t i = 0; i < formal.size() && results.size() < op.schema().returns().size(); ++i)
    if (formal[i].alias_info() != nullptr && formal[i].alias_info()->isWrite())
      results.push_back(stack[base + i]);
  return results;
}

// On the meta device, as its kernels want them.
Stack on_meta(const c10::OperatorHandle& op, const Stack& stack, size_t base) {
  Stack arguments(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  for (c10::IValue& value : arguments)
    value = value.isGenerator() ? c10::IValue() : with_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() ? meta_of(tensor) : tensor;
    });
  if (const auto device = op.schema().argumentIndexWithName("device"))
    arguments[static_cast<size_t>(*device)] = c10::Device(at::kMeta);
  if (const auto pinned = op.schema().argumentIndexWithName("pin_memory"))
    arguments[static_cast<size_t>(*pinned)] = c10::IValue();
  return arguments;
}

std::string signature_of(const c10::OperatorHandle& op, const Stack& arguments) {
  std::ostringstream text;
  text << op.schema().name() << '.' << op.schema().overload_name();
  for (const c10::IValue& value : arguments) {
    text << '|';
    if (!may_hold_tensors(value)) {
      text << value;
      continue;
    }
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.defined())
        text << tensor.scalar_type() << tensor.sizes() << tensor.strides() << ';';
      else
        text << '-';
    });
  }
  return text.str();
}

}  // namespace

void Shapes::compute(const c10::OperatorHandle& op, Stack& stack, const std::string& place) {
  const size_t base = stack.size() - op.schema().arguments().size();
  refuse_what_depends_on_values(op, stack, base, place);
  const at::Device device = device_in(stack, base);
  if (is_composed_of_others(op, device))
    return op.redispatchBoxed(c10::DispatchKeySet(autograd_key(device)), &stack);
  compute_basic(op, stack, base, place);
}

void Shapes::compute_basic(const c10::OperatorHandle& op, Stack& stack, size_t base,
                           const std::string& place) {
  const OperatorKind kind = kind_of(op);
  if (kind == OperatorKind::View || kind == OperatorKind::InplaceView) {
    const Kernels kernels;
    return op.callBoxed(&stack);
  }
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    met_random = true;
    if (draws) draw(op, stack, base);
  }
  Stack results;
  if (kind == OperatorKind::Writes) {
    results = written_arguments(op, stack, base);
  } else if (!returns_tensors(op)) {
    // Answers of shapes alone: which attention LibTorch takes.
    require(is_one_of(op.schema().name(), {"aten::_fused_sdp_choice", "aten::is_same_size"}),
            ErrorKind::Unsupported, place,
            "gives something else than tensors of what another stage computes (" + op.schema().name() + ")");
    const Kernels kernels;
    return op.callBoxed(&stack);
  } else {
    const at::Device device = device_in(stack, base);
    std::optional<at::Device> asked;
    if (const auto i = op.schema().argumentIndexWithName("device"))
      if (const c10::IValue& value = stack[base + static_cast<size_t>(*i)]; !value.isNone())
        asked = value.toDevice();
    const Stack arguments = on_meta(op, stack, base);
    results = results_of(op, arguments);
    cost += cost_of(op, arguments, results);
    for (c10::IValue& value : results)
      value = with_tensors(value, [&](const at::Tensor& tensor) {
        return tensor.defined() ? hollow_like(tensor, tensor.scalar_type(), asked.value_or(device)) : tensor;
      });
  }
  stack.resize(base);
  stack.insert(stack.end(), results.begin(), results.end());
}

Stack Shapes::results_of(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack results;
  const Kernels kernels;
  if (shapes_by_rule(op, arguments, results)) return results;
  results = arguments;
  try {
    op.callBoxed(&results);
  } catch (const c10::NotImplementedError&) {
    results = measured(op, arguments);
  }
  return results;
}

// The operator's own work, once for each combination of shapes, on zeros.
Stack Shapes::measured(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto [known, is_new] = measured_.try_emplace(signature_of(op, arguments));
  if (!is_new) return known->second;
  Stack results = arguments;
  for (c10::IValue& value : results)
    value = with_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined()
                 ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU))
                       .zero_()
                 : tensor;
    });
  if (const auto device = op.schema().argumentIndexWithName("device"))
    results[static_cast<size_t>(*device)] = c10::Device(at::kCPU);
  op.callBoxed(&results);
  for (c10::IValue& value : results)
    value = with_tensors(
        value, [](const at::Tensor& tensor) { return tensor.defined() ? meta_of(tensor) : tensor; });
  return known->second = results;
}

}  // namespace zero::detail

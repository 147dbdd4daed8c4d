#include "virtual/shapes.h"

#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ne.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "virtual/operator_call.h"
#include "virtual/runtime.h"
#include "zero/error.h"

namespace zero::virtual_device {
namespace {

using at::Tensor;
using c10::DispatchKey;
using Arguments = c10::ArrayRef<c10::IValue>;
using Results = std::vector<Tensor>;
using ShapeRule = Results (*)(Arguments);

// --- What CPU kernels without a meta kernel give out.

Results layer_norm(Arguments of) {
  const Tensor input = of[0].toTensor();
  const Tensor weight = of[2].isNone() ? Tensor() : of[2].toTensor();
  const bool is_mixed = weight.defined() && weight.scalar_type() != input.scalar_type();
  std::vector<int64_t> sizes = input.sizes().vec();
  const size_t normalized = of[1].toDimVector().size();
  for (size_t dim = sizes.size() - normalized; dim < sizes.size(); ++dim) sizes[dim] = 1;
  const auto statistics = is_mixed ? input.options().dtype(at::kFloat) : input.options();
  return {at::empty_like(input, at::MemoryFormat::Contiguous), at::empty(sizes, statistics),
          at::empty(sizes, statistics)};
}

Results layer_norm_backward(Arguments of) {
  const auto mask = of[7].toBoolList();
  const auto like = [&](size_t argument, bool is_wanted) {
    const bool is_there = is_wanted && of[argument].isTensor() && of[argument].toTensor().defined();
    return is_there ? at::empty_like(of[argument].toTensor(), at::MemoryFormat::Contiguous) : Tensor();
  };
  return {like(1, mask[0]), like(5, mask[1]), like(6, mask[2])};
}

// [batch, heads, sequence, width], with the heads beside each other in memory.
Tensor with_heads_inside(c10::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, options).transpose(1, 2);
}

Results attention(Arguments of) {
  const Tensor query = of[0].toTensor();
  const c10::IntArrayRef sizes = query.sizes();
  const bool is_narrow = c10::isReducedFloatingType(query.scalar_type());
  const auto sums = query.options().dtype(is_narrow ? at::kFloat : query.scalar_type());
  return {at::empty_like(query), at::empty({sizes[0], sizes[2], sizes[1]}, sums).transpose(1, 2)};
}

Results attention_backward(Arguments of) {
  Results gradients;
  for (size_t i = 1; i <= 3; ++i)
    gradients.push_back(with_heads_inside(of[i].toTensor().sizes(), of[i].toTensor().options()));
  return gradients;
}

Results index_select(Arguments of) {
  const Tensor self = of[0].toTensor(), index = of[2].toTensor();
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty())
    sizes[static_cast<size_t>(at::maybe_wrap_dim(of[1].toInt(), self.dim()))] = index.numel();
  return {at::empty(sizes, self.options())};
}

Results embedding_backward(Arguments of) {
  const Tensor gradient = of[0].toTensor();
  return {at::empty({of[2].toInt(), gradient.size(-1)}, gradient.options())};
}

Results where(Arguments of) {
  const Tensor condition = of[0].toTensor(), a = of[1].toTensor(), b = of[2].toTensor();
  Tensor result = at::empty({0}, a.options().dtype(at::result_type(a, b)));
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .add_output(result)
      .add_const_input(condition)
      .add_const_input(a)
      .add_const_input(b)
      .build();
  return {result};
}

Results isnan(Arguments of) { return {at::ne(of[0].toTensor(), of[0].toTensor())}; }

ShapeRule rule_of(std::string_view name) {
  static const std::unordered_map<std::string_view, ShapeRule> kRules{
      {"aten::native_layer_norm", &layer_norm},
      {"aten::native_layer_norm_backward", &layer_norm_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", &attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &attention_backward},
      {"aten::index_select", &index_select},
      {"aten::embedding_dense_backward", &embedding_backward},
      {"aten::where", &where},
      {"aten::isnan", &isnan}};
  const auto found = kRules.find(name);
  return found != kRules.end() ? found->second : nullptr;
}

// In place on the first operand, whatever the others are: what collectives and sums over ranks are made of,
// thousands of times a step.
bool keeps_first_operand(std::string_view name) {
  return name == "aten::add_" || name == "aten::mul_" || name == "aten::div_" || name == "aten::zero_" ||
         name == "aten::fill_";
}

bool has_kernel_for_meta(const c10::OperatorHandle& op) {
  for (const DispatchKey key :
       {DispatchKey::Meta, DispatchKey::CompositeExplicitAutograd,
        DispatchKey::CompositeExplicitAutogradNonFunctional, DispatchKey::CompositeImplicitAutograd})
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

// The operator only writes tensors that it is given, the first of which it hands back, if it returns
// anything.
bool works_in_place(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const auto& returns = op.schema().returns();
  const auto is_written = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  if (returns.empty()) return std::any_of(arguments.begin(), arguments.end(), is_written);
  return returns.size() == 1 && is_written(returns[0]) && is_written(arguments[0]);
}

void put_results(torch::jit::Stack& stack, size_t base, Results results) {
  stack.resize(base);
  for (Tensor& result : results) stack.emplace_back(std::move(result));
}

}  // namespace

void run_on_shapes(const c10::OperatorHandle& op, const std::string& name, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet(DispatchKey::Fake));
  const size_t base = stack.size() - op.schema().arguments().size();
  if (const ShapeRule rule = rule_of(name))
    return put_results(stack, base, rule(Arguments(stack.data() + base, stack.size() - base)));
  if (keeps_first_operand(name) || (!has_kernel_for_meta(op) && works_in_place(op))) {
    stack.resize(base + op.schema().returns().size());
    return;
  }
  try {
    op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::Meta), &stack);
  } catch (const c10::NotImplementedError&) {
    fail(ErrorKind::Unsupported, name, "has no rule for the shapes of its results without values",
         "run it on devices with values");
  }
}

bool has_values(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.device().type() != kVirtual) return true;
  const Block* block = block_of(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  // What was expanded beyond its memory would be computed at its full size.
  return block == nullptr ||
         (block->has_values && tensor.nbytes() <= std::max(block->asked_bytes, kAlwaysValuesBytes));
}

bool have_values(const torch::jit::Stack& stack, size_t base) {
  for (size_t i = base; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor() && !has_values(value.toTensor())) return false;
    if (value.isTensorList())
      for (const Tensor& tensor : value.toTensorVector())
        if (!has_values(tensor)) return false;
    if (value.isOptionalTensorList())
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
        if (tensor && !has_values(*tensor)) return false;
  }
  return true;
}

bool takes_values(const Tensor& tensor) {
  if (has_values(tensor)) return true;
  const Block& block = *block_of(*tensor.storage().unsafeGetStorageImpl());
  const at::ScalarType type = tensor.scalar_type();
  return (type == at::kDouble || c10::isIntegralType(type, /*includeBool=*/true)) &&
         block.asked_bytes <= kMostValuesBytes && region_of(tensor).covers(Region(0, block.asked_bytes));
}

void note_contents(const Tensor& tensor, bool from_values) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
  Block* block = block_of(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  if (block == nullptr) return;
  if (from_values) {
    block->has_values = takes_values(tensor);
    return;
  }
  if (block->asked_bytes > kAlwaysValuesBytes) {
    block->has_values = false;
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet(DispatchKey::Fake));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  OperatorCall call;
  call.to_cpu(tensor, true, false).fill_(1);
}

}  // namespace zero::virtual_device

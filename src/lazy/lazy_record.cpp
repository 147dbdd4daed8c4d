// Records what the constructor of a module does: its operators, with tensors without values as their results.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lazy/lazy_tape.h"
#include "seam/stack_tensors.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// In-place operators that give every element of their target a new value without looking at the old one.
bool overwrites_target(const c10::OperatorHandle& op, const at::Tensor& target) {
  static const std::unordered_set<std::string> kNames{
      "aten::normal_",    "aten::uniform_",     "aten::fill_",       "aten::zero_",
      "aten::copy_",      "aten::random_",      "aten::log_normal_", "aten::cauchy_",
      "aten::geometric_", "aten::exponential_", "aten::bernoulli_"};
  return kNames.contains(operator_name(op)) && target.is_non_overlapping_and_dense() &&
         std::cmp_equal(target.numel() * target.element_size(),
                        target.unsafeGetTensorImpl()->unsafe_storage().nbytes());
}

TensorRef ref_of(const at::Tensor& tensor, int64_t storage) {
  return {storage, tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
          tensor.scalar_type()};
}

at::Tensor meta_like(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

bool has_tensors(const torch::jit::Stack& stack, size_t base) {
  return std::any_of(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end(),
                     [](const c10::IValue& value) {
                       return (value.isTensor() && value.toTensor().defined()) || value.isTensorList() ||
                              value.isOptionalTensorList();
                     });
}

bool returns_tensors(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

}  // namespace

std::string operator_name(const c10::OperatorHandle& op) { return op.schema().name(); }

at::Tensor geometry_on(const TensorRef& ref, const c10::Storage& storage) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(ref.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(ref.sizes, ref.strides, ref.offset);
  return tensor;
}

HollowTag* hollow_tag(const at::Tensor& tensor) { return dynamic_cast<HollowTag*>(tag_of(tensor)); }

Tape::Tape() : random_state_(at::detail::getDefaultCPUGenerator().get_state()) {}

Tape::Entry Tape::make_entry(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                             size_t base) const {
  Entry entry{.op = op,
              .constants = torch::jit::Stack(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end())};
  entry.random = op.hasTag(at::Tag::nondeterministic_seeded);
  const auto& formal = op.schema().arguments();
  for (size_t i = 0; i < formal.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    const bool written = formal[i].alias_info() != nullptr && formal[i].alias_info()->isWrite();
    if (!may_hold_tensors(value)) continue;
    Argument argument{i, Argument::Form::Tensor, {}};
    if (value.isTensorList()) argument.form = Argument::Form::List;
    if (value.isOptionalTensorList()) argument.form = Argument::Form::OptionalList;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (HollowTag* tag = hollow_tag(tensor)) {
        require(tag->tape.get() == this, ErrorKind::Usage, operator_name(op),
                "uses a lazy tensor of another lazily() call", "materialize it first");
        (written ? entry.writes : entry.reads).push_back(tag->id);
        if (written) entry.overwrites = overwrites_target(op, tensor);
        argument.sources.emplace_back(ref_of(tensor, tag->id));
      } else {
        require(!(written && tensor.defined()), ErrorKind::Unsupported, operator_name(op),
                "writes a tensor that has data from lazy or random values inside lazily()",
                "build that tensor with a factory function inside lazily(), or build the module eagerly");
        entry.versions.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
        argument.sources.emplace_back(tensor);
      }
    });
    entry.constants[i] = c10::IValue();
    entry.arguments.push_back(std::move(argument));
  }
  return entry;
}

void Tape::record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.schema().arguments().size();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto run_as_it_is = [&] {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Fake),
                       &stack);
  };
  const OperatorKind kind = kind_of(op);
  if (kind == OperatorKind::View || kind == OperatorKind::InplaceView) return run_as_it_is();

  bool hollow = false;
  for (size_t i = base; i < stack.size(); ++i)
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) { hollow |= hollow_tag(tensor) != nullptr; });
  const bool factory = !has_tensors(stack, base) && returns_tensors(op);
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
  if (!hollow && !factory && !random) return run_as_it_is();
  if (!returns_tensors(op) && kind != OperatorKind::Writes) return run_on_values(op, stack, base);

  for (const c10::Argument& argument : op.schema().arguments())
    require(!argument.is_out(), ErrorKind::Unsupported, operator_name(op),
            "out= variants are not supported inside lazily()", "use the variant that returns its result");
  Entry entry = make_entry(op, stack, base);
  if (kind == OperatorKind::Writes) {
    // The result of an in-place operator is its target; nothing is computed now.
    torch::jit::Stack results;
    const auto& formal = op.schema().arguments();
    for (size_t i = 0; i < formal.size() && results.size() < op.schema().returns().size(); ++i)
      if (formal[i].alias_info() != nullptr && formal[i].alias_info()->isWrite())
        results.push_back(stack[base + i]);
    push(std::move(entry));
    stack.resize(base);
    stack.insert(stack.end(), results.begin(), results.end());
    return;
  }
  run_on_shapes(op, stack, base, std::move(entry));
}

void Tape::push(Entry entry) { entries_.push_back(std::move(entry)); }

at::Tensor Tape::hollow_like(const at::Tensor& meta, int64_t* id) {
  *id = static_cast<int64_t>(storage_nbytes_.size());
  const auto nbytes = static_cast<int64_t>(meta.unsafeGetTensorImpl()->unsafe_storage().nbytes());
  storage_nbytes_.push_back(nbytes);
  c10::Storage storage = make_unreadable_storage(
      nbytes, at::kCPU, std::make_shared<HollowTag>(shared_from_this(), *id),
      "this tensor was built under zero::lazily() and has no values yet: give its module to "
      "zero::Engine, or call zero::materialize() first");
  return geometry_on(ref_of(meta, *id), storage);
}

// Computes only the shapes of an operator's results, on the meta device.
void Tape::run_on_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t base, Entry entry) {
  torch::jit::Stack shapes(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  for (c10::IValue& value : shapes) {
    value = value.isGenerator() ? c10::IValue()  // a CPU generator has no say over shapes
                                : with_tensors(value, meta_like);
  }
  if (auto device = op.schema().argumentIndexWithName("device")) shapes[*device] = c10::Device(at::kMeta);
  if (auto pinned = op.schema().argumentIndexWithName("pin_memory")) shapes[*pinned] = c10::IValue();
  try {
    op.callBoxed(&shapes);
  } catch (const c10::NotImplementedError&) {
    if (!entry.reads.empty()) return run_on_values(op, stack, base);
    shapes = run_for_shapes(op, stack, base);
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    int64_t id = 0;
    if (shapes[i].isTensor()) {
      shapes[i] = hollow_like(shapes[i].toTensor(), &id);
      entry.defines.push_back({i, std::nullopt, id});
    } else {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : shapes[i].toTensorList()) {
        list.push_back(hollow_like(tensor, &id));
        entry.defines.push_back({i, list.size() - 1, id});
      }
      shapes[i] = list;
    }
  }
  push(std::move(entry));
  stack.resize(base);
  stack.insert(stack.end(), shapes.begin(), shapes.end());
}

// An operator that the meta device does not know, on tensors with data: run it and keep only the shapes of
// its results.
torch::jit::Stack Tape::run_for_shapes(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                       size_t base) const {
  torch::jit::Stack results(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  for (c10::IValue& value : results)
    if (value.isGenerator()) value = c10::IValue();
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  op.callBoxed(&results);
  generator.set_state(state);
  return results;
}

// The operator's result depends on values (item(), equal(), nonzero()): compute its hollow inputs now, if
// that draws no random numbers.
void Tape::run_on_values(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t base) {
  Entry entry = make_entry(op, stack, base);
  Wanted wanted;
  for (int64_t id : entry.reads) wanted[id] = {0, storage_nbytes_[id]};
  std::set<int64_t> needed(entry.reads.begin(), entry.reads.end());
  bool random = entry.random;
  for (auto past = entries_.rbegin(); past != entries_.rend(); ++past) {
    const bool used = std::any_of(past->writes.begin(), past->writes.end(),
                                  [&](int64_t id) { return needed.contains(id); }) ||
                      std::any_of(past->defines.begin(), past->defines.end(),
                                  [&](const Output& output) { return needed.contains(output.storage); });
    if (!used) continue;
    random |= past->random;
    needed.insert(past->reads.begin(), past->reads.end());
  }
  require(!random, ErrorKind::Unsupported, operator_name(op),
          "needs random values that lazily() has not drawn yet",
          "do not read random values while the module is built, or build it eagerly");
  std::unordered_map<int64_t, c10::Storage> values;
  replay(wanted, [&](int64_t id, const c10::Storage& storage) { values.emplace(id, storage); });
  for (const Argument& argument : entry.arguments) {
    require(argument.form == Argument::Form::Tensor, ErrorKind::Unsupported, operator_name(op),
            "reads a list of lazy tensors inside lazily()", "build the module eagerly");
    if (const auto* ref = std::get_if<TensorRef>(&argument.sources.front()))
      stack[base + argument.index] = geometry_on(*ref, values.at(ref->storage));
  }
  op.callBoxed(&stack);
}

}  // namespace zero::detail

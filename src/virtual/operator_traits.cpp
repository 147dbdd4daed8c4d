#include "virtual/operator_traits.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "zero/torch_dtype.h"

namespace zero::virtual_device {
namespace {

// In-place operators that do not look at the old values, or replace a part of them.
bool overwrites(const std::string& name) {
  static const std::unordered_set<std::string> kNames{
      "aten::fill_",          "aten::zero_",           "aten::normal_",
      "aten::uniform_",       "aten::random_",         "aten::bernoulli_",
      "aten::exponential_",   "aten::log_normal_",     "aten::geometric_",
      "aten::cauchy_",        "aten::copy_",           "aten::_foreach_zero_",
      "aten::_foreach_copy_", "aten::resize_",         "aten::set_",
      "aten::masked_fill_",   "aten::masked_scatter_", "aten::index_copy_",
      "aten::index_fill_",    "aten::index_put_",      "aten::_index_put_impl_",
      "aten::scatter_",       "aten::resize_as_"};
  return kNames.contains(name);
}

bool is_like(const std::string& name) { return name.ends_with("_like") || name.starts_with("aten::new_"); }

// Kernels of LibTorch's own operators are the CPU's for want of others; a library's operator would have none.
bool is_host_only(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::") || name.starts_with("prims::") || name.starts_with("prim::")) return false;
  return op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

void read_arguments(const c10::FunctionSchema& schema, OperatorTraits& traits) {
  const bool is_overwriting = overwrites(traits.name), is_like_another = is_like(traits.name);
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const bool is_written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (is_written) traits.written_arguments |= uint64_t{1} << i;
    if ((is_written && (arguments[i].is_out() || is_overwriting)) || is_like_another)
      traits.unread_arguments |= uint64_t{1} << i;
    if (arguments[i].name() == "beta") traits.beta_argument = static_cast<int>(i);
  }
}

OperatorTraits make_traits(const c10::OperatorHandle& op) {
  OperatorTraits traits;
  const c10::FunctionSchema& schema = op.schema();
  traits.name = schema.name();
  read_arguments(schema, traits);
  for (const c10::Argument& result : schema.returns())
    traits.is_view |= traits.written_arguments == 0 && result.alias_info() != nullptr;
  traits.is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  traits.waits = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  traits.is_index = traits.name == "aten::index" || traits.name == "aten::index_put_" ||
                    traits.name == "aten::_index_put_impl_" || traits.name == "aten::index_put";
  const bool is_resize =
      traits.name == "aten::resize_" || traits.name == "aten::set_" || traits.name == "aten::resize_as_";
  const bool gives_tensors =
      std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
        return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
               result.type()->isSubtypeOf(*c10::ListType::ofTensors());
      });
  traits.uses_values = !is_resize && (gives_tensors || traits.written_arguments != 0 || traits.waits);
  traits.reads_rows_only = traits.name == "aten::nll_loss_forward" || traits.name == "aten::embedding" ||
                           traits.name == "aten::index_select" || traits.name == "aten::gather" ||
                           traits.name == "aten::index";
  traits.is_host_only = is_host_only(op);
  traits.flops = flops_rule(traits.name);
  return traits;
}

}  // namespace

const OperatorTraits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const void*, const OperatorTraits*> seen;
  const OperatorTraits*& mine = seen[&op.schema()];
  if (mine != nullptr) return *mine;
  // Kept for ever: names of work that was done stand in the accesses of memory.
  static std::mutex mutex;
  static auto* const all = new std::unordered_map<const void*, std::unique_ptr<OperatorTraits>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<OperatorTraits>& shared = (*all)[&op.schema()];
  if (shared == nullptr) shared = std::make_unique<OperatorTraits>(make_traits(op));
  mine = shared.get();
  return *mine;
}

Dtype rate_type(c10::ScalarType type) {
  return type == c10::kDouble || type == c10::kHalf || type == c10::kBFloat16 ? dtype_of(type) : Dtype::f32;
}

}  // namespace zero::virtual_device

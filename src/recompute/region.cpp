#include "recompute/region.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/shape_text.h"
#include "recompute/host_inputs.h"
#include "recompute/saved_parameter.h"
#include "recompute/saved_tensor_hooks.h"
#include "seam/storage_access.h"
#include "seam/tensor_holder.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using torch::autograd::SavedVariableHooks;

std::vector<at::Device> devices_of(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Device> devices;
  for (const at::Tensor& input : inputs)
    if (input.defined() && !input.is_cpu() &&
        std::find(devices.begin(), devices.end(), input.device()) == devices.end())
      devices.push_back(input.device());
  return devices;
}

/// In a node of the forward's graph.
class InSlot : public SavedVariableHooks {
 public:
  explicit InSlot(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  void call_pack_hook(const at::Tensor& tensor) override { region_->let_go(slot_, tensor); }
  at::Tensor call_unpack_hook() override { return region_->take(*slot_); }

 private:
  std::shared_ptr<Region> region_;
  std::shared_ptr<Slot> slot_ = std::make_shared<Slot>();
};

/// In a node of a repetition's graph, of which nothing is used but by a backward inside the function.
class Repeated : public SavedVariableHooks {
 public:
  explicit Repeated(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  void call_pack_hook(const at::Tensor& tensor) override { kept_ = region_->take_back(tensor); }
  at::Tensor call_unpack_hook() override { return kept_; }

 private:
  std::shared_ptr<Region> region_;
  at::Tensor kept_;
};

template <class Hooks>
class HooksOf : public SavedTensorHooks {
 public:
  explicit HooksOf(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  std::unique_ptr<SavedVariableHooks> make() override { return std::make_unique<Hooks>(region_); }

 private:
  std::shared_ptr<Region> region_;
};

// Its own version, so that a later write shows; no graph.
at::Tensor without_graph(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach();
}

std::string text_of(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  return std::string(c10::toString(dtype)) + " " + shape_text({sizes.data(), sizes.size()}) + " on " +
         device.str();
}

constexpr const char* kComputeTheSame =
    "the function must compute the same when backward calls it again, from what it reads and draws";

}  // namespace

Region::Region(TensorsFunction fn, const std::vector<at::Tensor>& inputs, const RecomputeOptions& options)
    : fn_(std::move(fn)), options_(options), state_(devices_of(inputs), options.preserve_random_state) {
  for (const at::Tensor& input : inputs) keep(input);
}

void Region::keep(const at::Tensor& input) {
  Input& kept = inputs_.emplace_back();
  if (!input.defined()) return;
  kept.needs_gradient = input.requires_grad();
  at::Tensor saved = without_graph(held_by(input));
  if (const TensorHolder* const holder = holder_of(input))
    kept.around = holder->wrapper();
  else if (options_.partition_inputs)
    for (const auto& context : forward_contexts())
      if (std::optional<KeptPart> part = context->part_of(saved)) {
        saved = part->part;
        kept.whole = std::move(part->whole);
        break;
      }
  HostInputs on_host;
  std::optional<SavedTensorHooksScope> to_host;
  if (options_.inputs_on_host && !input.is_cpu()) to_host.emplace(on_host);
  kept.saved = {saved, /*is_output=*/false};
}

std::vector<at::Tensor> Region::run(const std::vector<at::Tensor>& inputs) {
  HooksOf<InSlot> hooks(shared_from_this());
  const SavedTensorHooksScope scope(hooks);
  return fn_(inputs);
}

void Region::let_go(const std::shared_ptr<Slot>& slot, const at::Tensor& tensor) {
  slot->sizes = tensor.sizes().vec();
  slot->dtype = tensor.scalar_type();
  slot->device = tensor.device();
  if (is_parameter(tensor)) slot->parameter_version = tensor._version();
  slots_.push_back(slot);
}

at::Tensor Region::take_back(const at::Tensor& tensor) {
  const int64_t index = next_++;
  const at::Tensor kept = without_graph(tensor);
  if (index > last_needed_) return kept;
  if (const std::shared_ptr<Slot> slot = slots_[index].lock()) {
    require_same(*slot, tensor);
    slot->value = kept;
    slot->value_version = kept._version();
  }
  if (index == last_needed_) throw EndOfRepetition{this};
  return kept;
}

void Region::require_same(const Slot& slot, const at::Tensor& tensor) const {
  const std::string then = text_of(slot.sizes, slot.dtype, slot.device),
                    now = text_of(tensor.sizes(), tensor.scalar_type(), tensor.device());
  require(then == now, ErrorKind::Usage, options_.name,
          "a tensor that backward needs was " + then + " and is " + now + " when recomputed",
          kComputeTheSame);
  require(slot.parameter_version < 0 || slot.parameter_version == tensor._version(), ErrorKind::Usage,
          options_.name, "a parameter " + then + " was written in place between forward and backward",
          "write parameters after backward");
}

at::Tensor Region::take(Slot& slot) {
  const std::lock_guard lock(mutex_);
  if (!slot.value.defined()) repeat();
  require(slot.value.defined(), ErrorKind::Internal, options_.name, "a repetition left a slot empty");
  require(slot.value._version() == slot.value_version, ErrorKind::Usage, options_.name,
          "a tensor that backward needs, " + text_of(slot.sizes, slot.dtype, slot.device) +
              ", was written in place after it was used",
          "write another tensor in its place");
  // Once more only where the graph is kept, and then from another repetition.
  return std::exchange(slot.value, {});
}

int64_t Region::last_needed() const {
  int64_t index = std::ssize(slots_) - 1;
  while (index >= 0 && slots_[index].expired()) --index;
  return index;
}

at::Tensor Region::input_again(const Input& input) const {
  at::Tensor tensor;
  try {
    tensor = input.saved.unpack();
  } catch (const c10::Error&) {
    fail(ErrorKind::Usage, options_.name, "an input was written in place between forward and backward",
         "write another tensor in its place, or keep this part's activations");
  }
  if (!tensor.defined()) return tensor;
  tensor = without_graph(input.whole ? input.whole(tensor) : tensor).requires_grad_(input.needs_gradient);
  return input.around ? input.around(tensor) : tensor;
}

std::vector<at::Tensor> Region::inputs_again() const {
  std::vector<at::Tensor> inputs;
  for (const Input& input : inputs_) inputs.push_back(input_again(input));
  return inputs;
}

int64_t Region::bytes_brought_back(const std::vector<at::Tensor>& inputs) const {
  std::unordered_set<const c10::StorageImpl*> counted;
  const auto is_new = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() && tag_of(tensor) == nullptr &&
           counted.insert(tensor.storage().unsafeGetStorageImpl()).second;
  };
  for (const at::Tensor& input : inputs) is_new(held_by(input));
  int64_t bytes = 0;
  for (const std::weak_ptr<Slot>& held : slots_)
    if (const std::shared_ptr<Slot> slot = held.lock())
      if (slot->parameter_version < 0 && is_new(slot->value))
        bytes += static_cast<int64_t>(slot->value.storage().nbytes());
  return bytes;
}

void Region::repeat() {
  if (begins_) begins_();
  const std::vector<at::Tensor> inputs = inputs_again();
  const ForwardState::Scope as_then(state_);
  const at::AutoGradMode with_graph(true);
  HooksOf<Repeated> hooks(shared_from_this());
  const SavedTensorHooksScope scope(hooks);
  next_ = 0;
  last_needed_ = last_needed();
  try {
    fn_(inputs);
  } catch (const EndOfRepetition& end) {
    if (end.region != this) throw;
    if (ends_) ends_(bytes_brought_back(inputs));
    return;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::Usage, options_.name,
         "the function threw when backward called it again: " + std::string(error.what()), kComputeTheSame);
  }
  fail(ErrorKind::Usage, options_.name,
       "backward needs tensor " + std::to_string(last_needed_ + 1) +
           " of those that the function saves, and it saved " + std::to_string(next_) + " when recomputed",
       kComputeTheSame);
}

}  // namespace zero::detail

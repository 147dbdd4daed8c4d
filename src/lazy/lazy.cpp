#include "zero/lazy.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "lazy/lazy_tape.h"
#include "zero/error.h"

namespace zero {
namespace detail {

struct LazyScope::State {
  std::shared_ptr<OperatorRecorder> tape;
  InterceptOperators intercept;
};

namespace {
// A scope inside another goes on with the outer tape: one program, one order of random numbers.
std::shared_ptr<OperatorRecorder> current_or_new_tape() {
  auto current = current_recorder();
  return current ? current : std::make_shared<Tape>();
}
}  // namespace

LazyScope::LazyScope() {
  auto tape = current_or_new_tape();
  state_ = std::unique_ptr<State>(new State{tape, InterceptOperators(tape)});
}
LazyScope::LazyScope(const at::Tensor& lazy) {
  HollowTag* tag = hollow_tag(lazy);
  require(tag != nullptr, ErrorKind::Usage, "lazily_with", "the tensor is not lazy");
  state_ = std::unique_ptr<State>(new State{tag->tape, InterceptOperators(tag->tape)});
}
LazyScope::~LazyScope() = default;

}  // namespace detail

bool is_lazy(const at::Tensor& tensor) { return detail::hollow_tag(tensor) != nullptr; }

namespace {

// The elements of a tensor's storage that hold part of its values; all of them where these do not lie in
// order.
ElementRange in_storage(const at::Tensor& tensor, const ElementRange& part) {
  const auto nbytes = tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  if (!tensor.is_contiguous()) return {0, static_cast<int64_t>(nbytes / tensor.element_size())};
  return {tensor.storage_offset() + part.begin, tensor.storage_offset() + part.end};
}

void widen(ElementRange& range, const ElementRange& other) {
  if (other.begin >= other.end) return;
  if (range.begin >= range.end) {
    range = other;
    return;
  }
  range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
}

}  // namespace

void replay(std::span<const at::Tensor> tensors, const std::function<void(size_t, const at::Tensor&)>& sink) {
  std::vector<ElementRange> everything;
  for (const at::Tensor& tensor : tensors) everything.push_back({0, tensor.numel()});
  replay(tensors, everything, sink);
}

void replay(std::span<const at::Tensor> tensors, std::span<const ElementRange> parts,
            const std::function<void(size_t, const at::Tensor&)>& sink) {
  require(parts.size() == tensors.size(), ErrorKind::Usage, "replay",
          std::to_string(parts.size()) + " parts of " + std::to_string(tensors.size()) + " tensors");
  struct Wanted {
    std::shared_ptr<detail::Tape> tape;
    detail::Tape::Wanted storages;
    std::unordered_map<int64_t, std::vector<size_t>> users;
  };
  std::map<detail::Tape*, Wanted> tapes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    detail::HollowTag* tag = detail::hollow_tag(tensors[i]);
    if (tag == nullptr) {
      sink(i, tensors[i]);
      continue;
    }
    require(0 <= parts[i].begin && parts[i].begin <= parts[i].end && parts[i].end <= tensors[i].numel(),
            ErrorKind::Usage, "replay",
            "elements " + std::to_string(parts[i].begin) + " to " + std::to_string(parts[i].end) +
                " of a tensor of " + std::to_string(tensors[i].numel()));
    Wanted& wanted = tapes[tag->tape.get()];
    wanted.tape = tag->tape;
    widen(wanted.storages[tag->id], in_storage(tensors[i], parts[i]));
    wanted.users[tag->id].push_back(i);
  }
  for (const auto& tape : tapes) {
    const Wanted& wanted = tape.second;
    wanted.tape->replay(wanted.storages, [&](int64_t id, const c10::Storage& values) {
      for (size_t i : wanted.users.at(id)) {
        const at::Tensor& tensor = tensors[i];
        auto value = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(values), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
        value.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                           tensor.storage_offset());
        sink(i, value);
      }
    });
  }
}

void materialize(torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.defined() || !is_lazy(tensor); });
  replay(tensors, [&](size_t i, const at::Tensor& value) {
    c10::StorageImpl& storage = *tensors[i].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (!is_lazy(tensors[i])) return;  // shares its storage with one that came before
    c10::DataPtr& memory =
        value.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    // Replayed values are fresh; the tape forgets them after this call, so their memory can move.
    c10::DataPtr taken(memory.get(), memory.device());
    std::swap(taken, memory);
    detail::attach_and_untag(storage, std::move(taken));
  });
}

}  // namespace zero

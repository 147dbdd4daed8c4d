#pragma once
// The tape behind lazily(): operators in program order, tensors as geometry on numbered storages. What fills
// it is in lazy_record.cpp, what runs it in lazy_replay.cpp.

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "seam/dispatch.h"
#include "zero/lazy.h"

namespace zero::detail {

class Tape;

/// Marks a storage without values as number `id` of a tape.
struct HollowTag : StorageTag {
  HollowTag(std::shared_ptr<Tape> tape, int64_t id) : tape(std::move(tape)), id(id) {}
  std::shared_ptr<Tape> tape;
  int64_t id;
};
HollowTag* hollow_tag(const at::Tensor& tensor);

/// A view of a numbered storage. The tape must not hold hollow tensors themselves: their storages hold the
/// tape.
struct TensorRef {
  int64_t storage;
  std::vector<int64_t> sizes, strides;
  int64_t offset;
  at::ScalarType dtype;
};

/// The tensor that `ref` describes, on its storage's values (or on a storage without any).
at::Tensor geometry_on(const TensorRef& ref, const c10::Storage& storage);

std::string operator_name(const c10::OperatorHandle& op);

class Tape : public OperatorRecorder, public std::enable_shared_from_this<Tape> {
 public:
  Tape();
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override;

  /// Storages, and which of their elements; the rest of a storage may be left undefined.
  using Wanted = std::map<int64_t, ElementRange>;
  /// Executes what the `wanted` storages need. `sink` gets each as soon as no later operator touches it.
  using Sink = std::function<void(int64_t storage, const c10::Storage& values)>;
  void replay(const Wanted& wanted, const Sink& sink);

 private:
  using Source = std::variant<at::Tensor, TensorRef>;  // a tensor with data, or a hollow one
  struct Argument {
    size_t index;
    enum class Form { Tensor, List, OptionalList } form;
    std::vector<Source> sources;
  };
  struct Output {
    size_t index;
    std::optional<size_t> element;  // of a list
    int64_t storage;
  };
  struct Entry {
    c10::OperatorHandle op;
    torch::jit::Stack constants;        // all arguments; those in `arguments` are filled in at replay
    std::vector<Argument> arguments{};  // the ones with tensors
    std::vector<int64_t> reads{}, writes{};
    std::vector<Output> defines{};
    std::vector<uint32_t> versions{};  // of the tensors with data, to notice later changes
    bool random = false;
    bool overwrites = false;  // writes every element of its target without reading it
  };
  struct Replay;

  Entry make_entry(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t base) const;
  void run_on_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t base, Entry entry);
  torch::jit::Stack run_for_shapes(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                   size_t base) const;
  void run_on_values(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t base);
  at::Tensor hollow_like(const at::Tensor& meta, int64_t* id);
  void push(Entry entry);

  std::vector<Entry> entries_;
  std::vector<int64_t> storage_nbytes_;
  at::Tensor random_state_;  // of the default generator when the tape began
  friend struct Replay;
};

}  // namespace zero::detail

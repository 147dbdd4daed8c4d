#pragma once
// What a forward runs inside of beside LibTorch's own settings, so that a part of it can be repeated in
// backward as it was.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace zero::detail {

/// What a rank keeps of a tensor that others hold alike, and how the whole is made again, by all of them.
struct KeptPart {
  at::Tensor part;  // memory of its own
  std::function<at::Tensor(const at::Tensor& part)> whole;
};

class ForwardContext {
 public:
  virtual ~ForwardContext() = default;
  /// Enters it again, until the result dies.
  virtual std::shared_ptr<void> enter() const = 0;
  /// Of an ordinary tensor of a forward; nothing where every rank keeps all of it.
  virtual std::optional<KeptPart> part_of(const at::Tensor& tensor) const = 0;
};
using ForwardContexts = std::vector<std::shared_ptr<const ForwardContext>>;

/// Those of this thread, the outermost first.
const ForwardContexts& forward_contexts();

/// Adds one while it lives. Scopes of a thread end in the opposite order.
class ForwardContextScope {
 public:
  explicit ForwardContextScope(std::shared_ptr<const ForwardContext> context);
  ~ForwardContextScope();
  ForwardContextScope(const ForwardContextScope&) = delete;
  ForwardContextScope& operator=(const ForwardContextScope&) = delete;
};

}  // namespace zero::detail

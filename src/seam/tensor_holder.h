#pragma once
// Tensors without a storage of their own that hold another tensor: wrappers, which report sizes of something
// larger.

#include <ATen/core/Tensor.h>

#include <functional>

namespace zero::detail {

class TensorHolder {
 public:
  virtual ~TensorHolder() = default;
  virtual const at::Tensor& held() const = 0;
  /// Makes wrappers like this one of other tensors of the held one's sizes, with their history. Holds no
  /// tensor.
  virtual std::function<at::Tensor(const at::Tensor& other)> wrapper() const = 0;
};

/// A wrapper's own; null: an ordinary tensor.
inline const TensorHolder* holder_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.has_storage()) return nullptr;
  return dynamic_cast<const TensorHolder*>(tensor.unsafeGetTensorImpl());
}

/// What a tensor holds, or itself.
inline const at::Tensor& held_by(const at::Tensor& tensor) {
  const TensorHolder* const holder = holder_of(tensor);
  return holder == nullptr ? tensor : holder->held();
}

}  // namespace zero::detail

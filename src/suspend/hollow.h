#pragma once
// Tensors of other stages: sizes, strides, type and device of the real ones, and no values. Whoever asks for
// these gets an error with a text of ours.

#include <ATen/core/Tensor.h>

#include <memory>

#include "seam/storage_access.h"

namespace zero::detail {

/// What one hollow tensor and its views share.
struct HollowStorage : StorageTag {};

/// The tag of a hollow tensor; null: it has values, or is another's (lazily()'s).
HollowStorage* hollow_storage(const at::Tensor& tensor);
inline bool is_hollow(const at::Tensor& tensor) { return hollow_storage(tensor) != nullptr; }

at::Tensor hollow(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, at::Device device);
/// Of another tensor's geometry, with a storage of its own.
at::Tensor hollow_like(const at::Tensor& tensor);
at::Tensor hollow_like(const at::Tensor& tensor, at::ScalarType dtype, at::Device device);

/// On the meta device, for LibTorch's own shape functions.
at::Tensor meta_of(const at::Tensor& tensor);

/// Gives a hollow tensor the values of `source`, of its sizes and type, and its place in source's graph: what
/// holds it reads `source` from then on. Views that were made of it before stay hollow.
void fill_hollow(const at::Tensor& hollow, const at::Tensor& source);

}  // namespace zero::detail
